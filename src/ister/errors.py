"""Every error that a person or a program can meet, as one small tree.

Each class has a `code` that stays the same for ever (scripts and docs refer to it), a number for
the wire, whether the same request may succeed when it is simply sent again (`retriable`), and a
`hint`: what the person should do now. The message says what happened and with which values.

The wire table at the end is built from the classes, so a new error is one class and nothing else.
"""

from __future__ import annotations

from typing import ClassVar, Final, Self

SAME_PRODUCER_HINT: Final = (
    "The outcome is unknown. Send it again as the same producer: a repeat is recognised."
)
"""For an append that may be in the log. Whoever is no such producer is told something else."""


class IsterError(Exception):
    """The base of all of them. Catch this to catch everything that Ister raises on purpose."""

    code: ClassVar[str] = "internal"
    wire: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    default_hint: ClassVar[str] = "This is a defect in Ister; please report it with the broker's log."

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        offsets: tuple[int, int] | None = None,
        index: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.offsets = offsets
        """From the first to before the second: what it is about, for programs; None if nobody says."""
        self.index = index
        """The metadata that whoever refuses goes by, where whoever asks has to know of that; else 0."""

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries under Spark; what is keyword-only must survive that.
        return (_rebuild, (type(self), self.message, self.hint, self.offsets, self.index))

    def __str__(self) -> str:
        return self.message

    def again(self) -> Self:
        """The same error, to be raised or told once more.

        One object that is raised twice gathers the tracebacks of strangers, and keeps alive what they hold.
        """
        return type(self)(self.message, hint=self.hint, offsets=self.offsets, index=self.index)


def _rebuild(
    kind: type[IsterError],
    message: str,
    hint: str,
    offsets: tuple[int, int] | None = None,
    index: int = 0,
) -> IsterError:
    return kind(message, hint=hint, offsets=offsets, index=index)


# Requests that are wrong in themselves.


class BadRequest(IsterError):
    code = "bad-request"
    wire = 2
    default_hint = (
        "Check the request against the protocol reference; client and broker may differ in version."
    )


class InvalidTopicName(BadRequest):
    code = "invalid-topic-name"
    wire = 3
    default_hint = (
        "Use `name` or `namespace/name`; each part has 1 to 200 letters, digits, dots, dashes or "
        "underscores, and does not start with a dot."
    )


class InvalidSetting(BadRequest):
    code = "invalid-setting"
    wire = 4
    default_hint = "See `ister topic create --help` for the settings and their ranges."


class MessageTooLarge(BadRequest):
    code = "message-too-large"
    wire = 5
    default_hint = "Send smaller records or batches, or raise the topic's max_message_bytes."


class UnsupportedVersion(BadRequest):
    code = "unsupported-version"
    wire = 6
    default_hint = "Upgrade the older side; the message names both versions."


class UnknownTopic(IsterError):
    code = "unknown-topic"
    wire = 7
    default_hint = "`ister topic list` shows what is there; `ister topic create` makes one."


class OffsetOutOfRange(IsterError):
    code = "offset-out-of-range"
    wire = 8
    default_hint = "Read from an offset within the range named, or from 'earliest' or 'latest'."


# The frame and the log.


class CorruptFrame(IsterError):
    """Bytes that are no frame, or a frame whose checksum does not hold."""

    code = "corrupt-frame"
    wire = 9
    default_hint = (
        "The bytes changed after the producer made them. If this repeats, check memory and network."
    )


class CorruptSegment(IsterError):
    """A stored segment is damaged before its end. Never treated as the end of the log (P3)."""

    code = "corrupt-segment"
    wire = 10
    default_hint = (
        "The stored bytes are damaged. Restore this segment from a copy; reading may go on after "
        "the damaged offsets named here, but they are not there."
    )


class RecordsLost(IsterError):
    """Offsets that an operator has given up, because nobody could reach them (F6): `offsets` is their range.

    Whatever was in them is not coming back; no other record ever gets one of them.
    """

    code = "records-lost"
    wire = 34
    default_hint = "Read on from the offset named; `ister topic describe` shows every range that is lost."


class OutOfSequence(IsterError):
    """A frame ahead of the producer's next sequence (A5): an earlier one is still on its way."""

    code = "out-of-sequence"
    wire = 11
    retriable = True
    default_hint = "Send the missing earlier batches first; the client does that by itself."


class UnknownProducer(IsterError):
    """The log has no memory of this producer, and may have had one: its sequence is not 0, or producers were
    forgotten since its first frame may have been sent for the first time (A5). Then `index` says when."""

    code = "unknown-producer"
    wire = 12
    default_hint = "The producer was silent for longer than the log remembers it. Open a new producer."


class DuplicateSequence(IsterError):
    """A repeat that is too old to say its offsets, or overlaps an earlier frame in part (A5)."""

    code = "duplicate-sequence"
    wire = 13
    default_hint = "These records were sent before under other batch boundaries; do not send them again."


class UnexpectedOffset(IsterError):
    """A conditional append: the topic's end is not where it was expected to be. Nothing was appended."""

    code = "unexpected-offset"
    wire = 36
    default_hint = "Somebody else has appended. Read what is there now, and decide again."


# Leadership and state of the broker.


class NotLeader(IsterError):
    code = "not-leader"
    wire = 14
    retriable = True
    default_hint = "Ask again: leadership moved. The client finds the new leader by itself."


class SegmentFenced(IsterError):
    """The segment takes no more appends: a recovery has fenced it, it was sealed, or its disk failed (P1)."""

    code = "segment-fenced"
    wire = 15
    retriable = True
    default_hint = "Retry: the topic goes on in its next segment. Nothing acknowledged was lost."


class Overloaded(IsterError):
    """A bound on memory, connections or waiting was reached."""

    code = "overloaded"
    wire = 16
    retriable = True
    default_hint = "Slow down and retry; the message names the limit and its setting."


class ShuttingDown(IsterError):
    code = "shutting-down"
    wire = 17
    retriable = True
    default_hint = "The broker is stopping. Retry against it once it is back, or against another node."


class RequestTimeout(IsterError):
    code = "timeout"
    wire = 18
    retriable = True
    default_hint = "Check that the broker is up and reachable, then retry."


class TopicExists(IsterError):
    code = "topic-exists"
    wire = 19
    default_hint = "Use the existing topic (--if-absent takes it as it is), or choose another name."


class StorageFailed(IsterError):
    """The disk refused: full, failing, or read-only. Never acknowledged, never silent (P1)."""

    code = "storage-failed"
    wire = 20
    retriable = True
    default_hint = "Check free space and the kernel's log on the broker named."


# Starting up.


class ConfigError(IsterError):
    code = "config"
    wire = 21
    default_hint = "See `ister serve --help` or the configuration reference."


class DataDirectoryError(IsterError):
    """The data directory is another node's, in use, from a newer version, or not one of ours."""

    code = "data-directory"
    wire = 22
    default_hint = "Give each broker a data directory of its own with --data-dir."


class AddressInUse(IsterError):
    code = "address-in-use"
    wire = 23
    default_hint = "Stop what listens there, or choose another port."


class ConnectionFailed(IsterError):
    code = "connection-failed"
    wire = 24
    retriable = True
    default_hint = "Is a broker listening there? `ister serve` starts one."


class LogClosed(ConnectionFailed):
    """A request of a log that its own program has closed: no retry brings it back."""

    code = "log-closed"
    wire = 29
    retriable = False
    default_hint = "Call ister.connect again."


class NodeUnreachable(IsterError):
    """The node that leads or holds what was asked for cannot be reached. The request was not begun there."""

    code = "node-unreachable"
    wire = 30
    retriable = True
    default_hint = "Start the node named again, or mend the way to it; the request then succeeds."


class JoinFailed(IsterError):
    """This node is not in a cluster, and could not get into one."""

    code = "join-failed"
    wire = 31
    default_hint = "Check that --join names the peer port of a node that is up, and start this one again."


class NodeIdInUse(IsterError):
    """Another node with this id is in the cluster and answers. It may be dying; so it is asked again."""

    code = "node-id-in-use"
    wire = 33
    retriable = True
    default_hint = "Give the new node an id of its own with --node-id."


class BuildTooOld(IsterError):
    """A node's build does not know what was asked for, or what its cluster has used already."""

    code = "build-too-old"
    wire = 58
    default_hint = "Upgrade the node named to the version of the others."


class ControlRefused(IsterError):
    code = "control-refused"
    wire = 32
    default_hint = (
        "Test controls need test_controls = true, a connection from loopback and the cluster's secret."
    )


class DependencyMissing(IsterError):
    code = "dependency-missing"
    wire = 25
    default_hint = "Install the extra named in the message."


class ObjectExists(IsterError):
    """Create-if-absent found the object already there."""

    code = "object-exists"
    wire = 26
    default_hint = "The object is already there; read and verify it instead of writing again."


class ObjectNotFound(IsterError):
    code = "object-not-found"
    wire = 27
    default_hint = "The object is not in the store; check the bucket or directory configured."


class StoreUnavailable(IsterError):
    """The store of the history refused or failed. What was asked of it may have been done all the same."""

    code = "store-unavailable"
    wire = 35
    retriable = True
    default_hint = (
        "Check that the store named can be reached and has room; what was asked of it is asked again. "
        "Records that are on brokers are read and written meanwhile."
    )


class CommitInDoubt(IsterError):
    """An exactly-once write was cut short, and what would tell how far it got is not there any more."""

    code = "commit-in-doubt"
    wire = 50
    default_hint = (
        "Look which of the batch's records the topic has, and write the others by hand; then start the query "
        "with a new checkpoint behind that batch."
    )


class StagedRecordsGone(IsterError):
    """Records that were staged for an exactly-once write were dropped before they were appended."""

    code = "staged-records-gone"
    wire = 51
    default_hint = "Run the job or the batch again: it stages its records anew."


class StaleBatch(IsterError):
    """A batch that is older than those which its query has committed, and of which nothing is known."""

    code = "stale-batch"
    wire = 52
    default_hint = "Another driver runs this query, or its checkpoint was set back. Run it once."


class OtherCluster(IsterError):
    """What is to be carried on was begun on another cluster, or what says how far it is was deleted (I1)."""

    code = "other-cluster"
    wire = 57
    default_hint = "Give the bootstrap.servers of the cluster that it was begun on."


# Subscriptions.


class UnknownSubscription(IsterError):
    code = "unknown-subscription"
    wire = 60
    default_hint = "`ister subscription list` shows what is there; `ister subscription create` makes one."


class SubscriptionExists(IsterError):
    """There is one of this name, and it is not as this one was to be."""

    code = "subscription-exists"
    wire = 61
    default_hint = "Use it as it is, choose another name, or delete it first: `ister subscription delete`."


class SubscriptionBusy(IsterError):
    """An exclusive subscription has its consumer."""

    code = "subscription-busy"
    wire = 62
    retriable = True
    default_hint = (
        "Stop the other consumer; one that died is forgotten within seconds. For several at a time make the "
        "subscription of another kind: `ister subscription create --kind shared`."
    )


class StaleDelivery(IsterError):
    """What was to be acknowledged was handed out before the subscription changed hands, or was sent
    elsewhere."""

    code = "stale-delivery"
    wire = 63
    default_hint = (
        "Nothing to do: what was not stored of it is delivered again, and can be acknowledged then."
    )


# Jobs under Spark.


class JobFailed(IsterError):
    """A task of a job failed in a way that is none of ours: the message has what Spark said."""

    code = "job-failed"
    wire = 42
    default_hint = "The message has what the task said last; the log of its executor has the rest."


class TableMismatch(IsterError):
    """A table holds records of another topic, or was made in another way than is asked for now."""

    code = "table-mismatch"
    wire = 43
    default_hint = "Give each topic, and each way to tier it, a table of its own: another --path."


class ReceiptMismatch(IsterError):
    """What a receipt of a replay says is not what the topic has."""

    code = "receipt-mismatch"
    wire = 53
    default_hint = "Nothing was replayed. Without the receipt it can be, into another place."


class InvariantBroken(IsterError):
    """A state that must not exist. Raised before harm is done rather than after."""

    code = "invariant"
    wire = 28


class MetadataContradicts(InvariantBroken):
    """What was committed here and what others have cannot both be: a directory forgot what it promised."""

    code = "metadata-contradicts"
    wire = 44
    default_hint = (
        "A node was started from an old backup of its data directory, or its disk lost what it had synced. "
        "Stop all nodes. If the last state of that directory still exists, put it back and start them again. "
        "Else go on with those that agree: start the one that does not with an empty --data-dir and --join, "
        "and keep its old directory: what it alone knew of is not in the cluster any more."
    )


def invariant(holds: object, message: str) -> None:
    """Stop here rather than go on in a state that our reasoning excludes."""
    if not holds:
        raise InvariantBroken(message)


def _tree(kind: type[IsterError]) -> list[type[IsterError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


BY_WIRE: dict[int, type[IsterError]] = {kind.wire: kind for kind in _tree(IsterError)}
BY_CODE: dict[str, type[IsterError]] = {kind.code: kind for kind in _tree(IsterError)}


def from_wire(
    number: int, message: str, hint: str, offsets: tuple[int, int] | None = None, index: int = 0
) -> IsterError:
    """The exception that an error which a broker sent back stands for."""
    return BY_WIRE.get(number, IsterError)(message, hint=hint, offsets=offsets, index=index)
