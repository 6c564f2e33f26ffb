"""A snapshot: where topics began and ended at one moment, so that a table can be read again, exactly.

    {"version": 1, "cluster": "...", "topics": {"default/orders": {"uid": 7, "start": 0, "end": 1234}}}

That is text, for the option `snapshot.offsets`, a file or a receipt. Offsets never change what they mean
(promise 2), so a table of a snapshot has the same rows whenever, wherever and from whichever tier it is read.
It holds nothing back from retention: what was trimmed since is reported as missing, with its offsets. Another
cluster, or a topic that was made again under its name, is refused (I1, I3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ister import sync
from ister.errors import ConfigError, UnknownTopic
from ister.names import normalise_topic
from ister.protocol.messages import TopicDescription

VERSION: Final = 1
_HINT: Final = "Make one with ister.spark.snapshot('orders', bootstrap='host:9091')."


class TopicSnapshot(msgspec.Struct, frozen=True):
    uid: int
    start: int
    end: int


class Snapshot(msgspec.Struct, frozen=True):
    cluster: str
    topics: Mapping[str, TopicSnapshot]
    """By their full names."""
    version: int = VERSION

    def check_cluster(self, cluster: str) -> None:
        if cluster != self.cluster:
            raise ConfigError(
                f"snapshot.offsets is of cluster {self.cluster}, and this is cluster {cluster}",
                hint="Give the bootstrap.servers of that cluster.",
            )

    def of(self, there: TopicDescription) -> TopicSnapshot:
        """Where the topic began and ended; it must be the same one still."""
        found = self.topics[there.topic]
        if found.uid != there.uid:
            raise UnknownTopic(
                f"snapshot.offsets is of {there.topic} with uid {found.uid}, which was deleted; the topic "
                f"that has the name now has uid {there.uid}",
                hint="Take a new snapshot.",
            )
        return found

    def to_text(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()


def snapshot(topics: str | Iterable[str], bootstrap: str = "127.0.0.1:9091") -> str:
    """These topics as they are now, for `.option("snapshot.offsets", ...)`. A record that was acknowledged
    before is in it."""
    names = [topics] if isinstance(topics, str) else topics
    with sync.connect(bootstrap) as log:
        found = {}
        for name in dict.fromkeys(map(normalise_topic, names)):
            there = log.describe_topic(name)
            end = log.offsets_at(name, "latest", uid=there.uid)
            found[name] = TopicSnapshot(there.uid, there.start_offset, end)
        return Snapshot(log.cluster_id, found).to_text()


def parse_snapshot(text: str) -> Snapshot:
    try:
        found = msgspec.json.decode(text, type=Snapshot)
    except msgspec.DecodeError as error:
        raise ConfigError(f"snapshot.offsets is {text!r}, which is none: {error}", hint=_HINT) from error
    if found.version > VERSION:
        raise ConfigError(
            f"snapshot.offsets is of version {found.version}; this Ister reads up to version {VERSION}",
            hint="Read it with the newer Ister that made it.",
        )
    if not found.topics or any(not 0 <= one.start <= one.end for one in found.topics.values()):
        raise ConfigError(f"snapshot.offsets is {text!r}, which has no topic or no range", hint=_HINT)
    return found
