"""A read that the system refused: what that says of the log, and what is told of it.

Most of these say nothing of what is stored: files or memory had run out, a call was interrupted. A disk that
cannot read a place is another matter, since a copy that cannot be read is as good as damaged, and writing it
anew is what makes the disk take another sector. But one such error may be a cable, a controller that was
reset, a network disk that was away for a moment. So it is damage only if the place cannot be read later
either, and then only where another copy can take its place: to the reader of the only one it stays
`StorageFailed`, which he may try again. Bytes that were read and do not fit are damage at once; so is a log
that is not there.
"""

from __future__ import annotations

import errno

from ister.errors import CorruptSegment, IsterError, StorageFailed

REPEAT_SECONDS = 1.0
"""How much later a place that could not be read is read again, before that is called damage."""

_MEDIUM = frozenset((errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.EBADMSG, errno.EUCLEAN))
"""What Linux makes of a sector, or of a file system's own block, that cannot be read or does not fit."""


def is_medium_error(error: OSError) -> bool:
    """Whether it may be the stored bytes that cannot be had; of anything else it is this machine's state."""
    return error.errno in _MEDIUM


def read_failed(key: str, where: str, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"{key} cannot be read at {where}: {error}",
        hint="Nothing is known to be damaged: try again. If it goes on, look at the kernel's log, the memory "
        "and the number of open files on the node that has it.",
    )


def unreadable(key: str, where: str, error: OSError) -> IsterError:
    """The same of a copy that is known to be damaged, or that nobody changes for what is said of it: what its
    disk cannot read is not there."""
    failed = read_failed(key, where, error)
    return CorruptSegment(failed.message) if is_medium_error(error) else failed
