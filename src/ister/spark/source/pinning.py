"""A stream query's pins on the brokers: one in each topic that it reads, renewed for as long as it lives.

A thread of its own renews them, so that neither a batch that takes an hour lets them run out, nor a broker
that does not answer holds up a batch. A pin is a comfort: a query whose pin cannot be set reads all the same,
and says so once. Spark kills this process where a query ends, as a crash does: what nobody renews holds
nothing a minute later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from ister import sync
from ister.errors import IsterError, UnknownTopic
from ister.spark.source.offsets import TopicPlace

log = logging.getLogger("ister.spark")

TTL_S: Final = 60.0
RENEW_S: Final = 10.0
"""How often pins are renewed; those that have not moved only every other time."""
ABOUT: Final = "stream query of Spark"
_STOP_S: Final = 5.0


class BrokerPins:
    """A `ReaderPin`, of one run of one query."""

    def __init__(self, found: sync.Log, *, renew_s: float = RENEW_S) -> None:
        self._found = found
        self._renew_s = renew_s
        self._lock = threading.Lock()
        self._reader = ""
        self._places: Mapping[str, TopicPlace] = {}
        self._told: dict[str, TopicPlace] = {}
        """What the brokers know, unless that ran out."""
        self._failed = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, reader: str, places: Mapping[str, TopicPlace]) -> None:
        with self._lock:
            self._reader, self._places = reader, dict(places)
        if self._thread is None and places:
            self._thread = threading.Thread(target=self._keep_renewing, name="ister-pins", daemon=True)
            self._thread.start()

    def release(self, reader: str) -> None:
        self._stopping.set()
        if self._thread is None:
            return
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            return  # a broker does not answer: the pins run out by themselves
        for topic, place in self._told.items():
            try:
                self._found.unpin(topic, reader, uid=place.uid)
            except IsterError as error:
                log.info("the pin of %s in %s is left to run out: %s", reader, topic, error.message)

    def _keep_renewing(self) -> None:
        everything = True
        while True:
            self._renew(everything=everything)
            everything = not everything
            if self._stopping.wait(self._renew_s):
                return

    def _renew(self, *, everything: bool) -> None:
        with self._lock:
            reader, places = self._reader, self._places
        for topic, place in places.items():
            if self._stopping.is_set():
                return
            if not everything and self._told.get(topic) == place:
                continue
            try:
                self._found.pin(topic, reader, place.offset, ttl_s=TTL_S, uid=place.uid, about=ABOUT)
                self._told[topic] = place
            except UnknownTopic:
                self._told.pop(topic, None)  # the query finds that out by itself
            except IsterError as error:
                self._say(reader, topic, error)

    def _say(self, reader: str, topic: str, error: IsterError) -> None:
        if not self._failed:
            self._failed = True
            log.warning(
                "%s has no pin in %s, and reads on: retention does not wait for it (%s)",
                reader,
                topic,
                error.message,
            )
