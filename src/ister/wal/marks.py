"""Whose a frame is, and what was durable before it: the segment field of its header."""

from __future__ import annotations

from ister.frame import FrameHeader

_UID_BITS = 40
_UID_MASK = (1 << _UID_BITS) - 1
_UNKNOWN_BEHIND = (1 << 24) - 1
"""More than can be said: the frame proves nothing about those before it."""


def marked(uid: int, behind: int) -> int:
    """The segment field of a frame: the uid, and how many records before it may not be durable when it is.

    A power cut may keep a later frame of a cycle and lose an earlier one. What tells that from damage is
    whether the later one was written when the earlier one was durable already: so each frame says so.
    """
    return uid | (behind if behind < _UNKNOWN_BEHIND else _UNKNOWN_BEHIND) << _UID_BITS


def durable_before(header: FrameHeader) -> int:
    """The offset up to which the log was certainly durable when this frame was written."""
    behind = header.segment >> _UID_BITS
    return 0 if behind == _UNKNOWN_BEHIND else header.base_offset - behind


def uid_of(header: FrameHeader) -> int:
    return header.segment & _UID_MASK
