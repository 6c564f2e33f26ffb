"""The page on the protocol says what the codec does, and the made pages are what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
from broker_helpers import append_request, frame_of, request

from ister.broker.clients import connection, receiving, requests
from ister.errors import IsterError, UnknownTopic, _tree
from ister.frame import FrameHeader
from ister.protocol import history, messages, moves, recovery, subscriptions
from ister.protocol.codec import MAX_HEADER_BYTES, encode_appended, encode_failure, encode_preamble
from ister.protocol.messages import Kind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
WITHOUT_DEFAULTS = re.sub(r"(`\w+`) = [^,;|]+", r"\1", " ".join(PAGE.split()))


def hexdump(data: bytes) -> str:
    rows = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{text}|")
    return "\n".join(rows)


def test_the_examples_are_what_the_codec_makes() -> None:
    hello = encode_preamble() + request(1, Kind.HELLO, messages.Hello("example 1.0"))
    append = append_request(2, "events", frame_of(b"hello, log"))
    appended = encode_appended(2, 0, 1_704_067_200_000_000)
    failure = encode_failure(3, UnknownTopic("there is no topic default/evnts"))
    shown = re.findall(r"```hexdump\n(.*?)\n```", PAGE, re.DOTALL)
    assert shown == [hexdump(data) for data in (hello, append, appended, failure)]


def test_every_request_and_its_fields_are_on_the_page() -> None:
    table = PAGE.partition("## Requests")[2].partition("- **Hello**")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ?(.*?) ?\|", table, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == [kind.value for kind in Kind]
    shared = dict.fromkeys(("TransferLeader", "RemoveNode", "PromoteNode"), messages.NodeRequest)
    for _, name, fields in rows:
        kind: type[msgspec.Struct] | None = shared.get(name) or _message(name)
        expected = kind.__struct_fields__ if kind is not None else ()
        assert tuple(re.findall(r"`(\w+)`", fields)) == expected, name


def _message(name: str) -> type[msgspec.Struct] | None:
    parts = (messages, history, moves, subscriptions)
    return next((found for part in parts if (found := getattr(part, name, None))), None)


def test_every_answer_is_on_the_page_with_its_fields_in_order() -> None:
    answers: list[type[msgspec.Struct]] = [
        messages.HelloAnswer,
        messages.FetchAnswer,
        messages.ListOffsetsAnswer,
        messages.ClusterAnswer,
        messages.ClusterNode,
        messages.Problem,
        messages.NodeAnswer,
        messages.StatsAnswer,
        messages.TopicDescription,
        messages.SegmentDescription,
        messages.CopyDescription,
        messages.Failure,
        history.HistoryEntry,
        history.Explanation,
        history.LookedUp,
        history.HistoryList,
        history.ObjectVerified,
        recovery.TopicRecovery,
        recovery.ReplicaReach,
        recovery.LostRecords,
        moves.MoveDescription,
        moves.DrainDescription,
        moves.LoadReport,
        moves.BalanceAnswer,
        moves.NodeBurden,
    ]
    for answer in answers:
        fields = ", ".join(f"`{field}`" for field in answer.__struct_fields__)
        assert fields in WITHOUT_DEFAULTS, answer.__name__


def test_the_frame_and_the_limits_are_as_the_page_says() -> None:
    frame_rows = re.findall(r"^\| \d+ \| (\w+)", PAGE.partition("## The frame")[2], re.MULTILINE)
    assert tuple(frame_rows) == FrameHeader._fields
    assert f"under way on a connection | {connection.MAX_TASKS:,} |" in PAGE
    assert connection.WRITE_BUFFER_BYTES == 1 << 20
    assert receiving.GREETING_BYTES == 128 * 1024 and MAX_HEADER_BYTES == 65_535
    assert requests.MAX_FETCH_BYTES == 8 << 20 and requests.MAX_WAIT_MS == 60_000


def test_the_pages_made_from_the_code_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_every_error_has_a_code_and_a_number_of_its_own_and_a_hint() -> None:
    kinds = _tree(IsterError)
    assert len({kind.code for kind in kinds}) == len({kind.wire for kind in kinds}) == len(kinds)
    assert [kind for kind in kinds if not kind.default_hint] == []
