"""Who is told where a stream is, so that what it still needs can be kept, and its lag be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ister.spark.source.offsets import TopicPlace


class ReaderPin(Protocol):
    """Told at each trigger, so that whoever implements it bounds how often anything is sent."""

    def hold(self, reader: str, places: Mapping[str, TopicPlace]) -> None:
        """This reader still needs everything from these offsets on."""

    def release(self, reader: str) -> None:
        """It has stopped. A reader that crashes does not get to say so."""
