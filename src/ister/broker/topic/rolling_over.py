"""When the open segment is full, old, or has other settings: it is handed off as soon as that is possible.

Limits are soft (A8): admission closes once a metadata leader has answered, so that an election stalls no
topic; until then the segment grows, up to a hard cap.
"""

from __future__ import annotations

import asyncio
import logging

from ister.broker.node.storage import Storage
from ister.broker.topic.handing_off import HandingOff
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.led_segment import LedSegment
from ister.broker.topic.sealing import is_past, limits_of, wanted_move
from ister.errors import IsterError
from ister.metadata.placement import Why

log = logging.getLogger("ister.broker.topic")

ASK_SECONDS = 1.0
ASK_PAUSE_SECONDS = 0.1


class RollingOver:
    def __init__(self, topic: KnownTopic, storage: Storage, led: LedSegment, handing_off: HandingOff) -> None:
        self._topic = topic
        self._storage = storage
        self._led = led
        self._handing_off = handing_off
        self._asking: asyncio.Task[None] | None = None
        self._why = Why.FULL
        """Of the last one that was asked for."""
        self.limits = limits_of(topic.state)
        """Where the open segment is full. A frame is never split, so it may pass them by one."""

    def settings_changed(self) -> None:
        """Take the limits from the settings; again whenever they or the open segment change."""
        segment, topic = self._led.current, self._topic.state
        if segment is not None and segment.policy.value != topic.settings.fsync:
            self.roll_over(Why.SETTINGS)  # a segment has one policy for life
        elif segment is not None and is_past(segment, limits_of(topic, are_hard=True)):
            self.roll_over(Why.FULL)  # not one frame more, however often it is opened again (F6 counts on it)
        else:
            self.limits = limits_of(topic)

    def became_full(self) -> None:
        if self.limits.are_hard:
            self._handing_off.start(Why.FULL)
        else:
            self.roll_over(Why.FULL)

    def roll_over(self, why: Why) -> None:
        """Hand off as soon as that is possible."""
        if self._storage.metadata.is_alone:
            self._handing_off.start(why)
            return
        self._why = why
        self.limits = limits_of(self._topic.state, are_hard=True)
        segment = self._led.current
        if segment is not None and is_past(segment, self.limits):
            self._handing_off.start(self._why)  # a large frame has filled it at once
        elif self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._hand_off_when_possible())

    async def _hand_off_when_possible(self) -> None:
        """Whichever segment is open by then: limits are hard only while the open one is full."""
        try:
            while self.limits.are_hard and not self._led.is_over:
                try:
                    await self._storage.metadata.read_index(ASK_SECONDS)
                    break
                except IsterError as error:
                    name = self._topic.state.name
                    log.debug("the open segment of %s is full, and goes on: %s", name, error)
                    await asyncio.sleep(ASK_PAUSE_SECONDS)
        finally:
            self._asking = None
        if self._why is Why.MOVE and wanted_move(self._storage, self._topic.state) is None:
            self.settings_changed()  # it was cancelled before anything came of it
        elif self.limits.are_hard and not self._led.is_over:
            self._handing_off.start(self._why)

    @property
    def is_old(self) -> bool:
        """Whether the open segment has records and is past its age, or has waited for its export so long."""
        topic, segment = self._topic.state, self._led.segment
        age_us = topic.settings.segment_age_ms * 1000
        if self._storage.history is not None and self._storage.export_after_us:
            age_us = min(age_us or self._storage.export_after_us, self._storage.export_after_us)
        return (
            age_us > 0
            and segment is not None
            and segment.end_offset > segment.identity.base_offset
            and self._storage.clock.now_us() - topic.open_segment.opened_at_us >= age_us
        )

    def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
