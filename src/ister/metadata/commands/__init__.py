"""The commands that change the metadata, a file for each concept, and what can come of them.

A command is a class here and a row in `ister.metadata.applying`, which says what it does.
"""

from __future__ import annotations

from ister.metadata.commands.base import (
    Command,
    Outcome,
    Result,
    TopicCommand,
)
from ister.metadata.commands.copies import (
    CopyEntry,
    ReportCopies,
    Reported,
)
from ister.metadata.commands.history import (
    AbandonObject,
    MergedPart,
    PublishObject,
    ReleaseCopies,
    ReplaceObjects,
    ReportObject,
)
from ister.metadata.commands.losses import (
    AcceptGone,
    AcceptLoss,
    KeptPart,
)
from ister.metadata.commands.moves import (
    CancelMove,
    EndMove,
    FailMove,
    ReleaseTopic,
    RequestMove,
)
from ister.metadata.commands.nodes import (
    ActivateNode,
    DrainNode,
    FoundCluster,
    RemoveNode,
    UpsertNode,
)
from ister.metadata.commands.readers import (
    ClaimCursor,
    FlushCursors,
    PinRow,
    SetPins,
)
from ister.metadata.commands.segments import (
    BeginRecovery,
    OpenedSegment,
    SealSegment,
    SetReplicas,
)
from ister.metadata.commands.subscriptions import (
    ClaimSubscription,
    CreateSubscription,
    DeleteSubscription,
    FlushRow,
    FlushSubscriptions,
    PauseSubscription,
    SeekSubscription,
)
from ister.metadata.commands.topics import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    TrimTopic,
)

__all__ = [
    "AbandonObject",
    "AcceptGone",
    "AcceptLoss",
    "ActivateNode",
    "AlterTopic",
    "BeginRecovery",
    "CancelMove",
    "ClaimCursor",
    "ClaimSubscription",
    "Command",
    "CopyEntry",
    "CreateSubscription",
    "CreateTopic",
    "DeleteSubscription",
    "DeleteTopic",
    "DrainNode",
    "EndMove",
    "FailMove",
    "FlushCursors",
    "FlushRow",
    "FlushSubscriptions",
    "FoundCluster",
    "KeptPart",
    "MergedPart",
    "OpenedSegment",
    "Outcome",
    "PauseSubscription",
    "PinRow",
    "PublishObject",
    "ReleaseCopies",
    "ReleaseTopic",
    "RemoveNode",
    "ReplaceObjects",
    "ReportCopies",
    "ReportObject",
    "Reported",
    "RequestMove",
    "Result",
    "SealSegment",
    "SeekSubscription",
    "SetPins",
    "SetReplicas",
    "TopicCommand",
    "TrimTopic",
    "UpsertNode",
]
