"""Topic names. `x`, `ns/x` and `/ns/x` are accepted; `namespace/name` is what is kept and shown.

Names go into log lines, metric labels and, later, object names; never into local file names, which are
made of uids (I3). A colon is not allowed because the WAL key is `namespace/topic:segment`.
"""

from __future__ import annotations

import re

from ister.errors import InvalidTopicName

DEFAULT_NAMESPACE = "default"
MAX_PART = 200

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z", re.ASCII)


def normalise_topic(name: str, longest: int = MAX_PART) -> str:
    """The full name, or `InvalidTopicName` with the reason."""
    parts = name.removeprefix("/").split("/")
    if len(parts) == 1:
        parts = [DEFAULT_NAMESPACE, *parts]
    if len(parts) != 2:
        raise InvalidTopicName(
            f"topic name {_shown(name)} has {len(parts)} parts; at most namespace/name is allowed"
        )
    for part in parts:
        if not part:
            raise InvalidTopicName(f"topic name {_shown(name)} is empty or has an empty part")
        if len(part) > longest:
            raise InvalidTopicName(
                f"topic name {_shown(name)} has a part of {len(part)} characters, over {longest}"
            )
        if not _PART.match(part):
            raise InvalidTopicName(f"topic name {_shown(name)} has characters that are not allowed")
    return "/".join(parts)


def is_system(topic: str) -> bool:
    """Whether a full name is in a namespace that Ister keeps for itself: those that begin with `_`.

    Their topics are in no list and no pattern unless it asks for them, and no append makes one: a name that
    was mistyped, or that comes out of data, never ends up among them.
    """
    return topic.startswith("_")


def wal_key(topic: str, segment: int) -> str:
    return f"{topic}:{segment}"


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:57] + "...")
