"""What a producer may hand in by mistake: a clear error that names it, and no frame."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import pytest

from ister import columns
from ister.columns import Codec
from ister.errors import BadRequest, MessageTooLarge
from ister.frame import encode

NOT_BYTES: list[tuple[str, dict[str, Any], str]] = [
    ("lone text", {"values": ["text"]}, "value 0 is of type str"),
    ("text among bytes", {"values": [b"a", b"b", "text"]}, "value 2 is of type str"),
    ("a number", {"values": [b"a", 5]}, "value 1 is of type int"),
    ("a lone number", {"values": [5]}, "value 0 is of type int"),
    ("a list of numbers", {"values": [[1, 2]]}, "value 0 is of type list"),
    ("lone wide items", {"values": [array("i", [1, 2])]}, "value 0 is of type array"),
    ("wide items", {"values": [b"a", array("i", [1, 2])]}, "value 1 is of type array"),
    (
        "a view of wide items",
        {"values": [b"a", memoryview(array("q", [1]))]},
        "value 1 is of type memoryview",
    ),
    ("text beside a null", {"values": [None, "text"]}, "value 1 is of type str"),
    ("text as key", {"values": [b"a", b"b"], "keys": [b"k", "text"]}, "key 1 is of type str"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), NOT_BYTES, ids=[case[0] for case in NOT_BYTES])
def test_a_record_that_is_not_bytes_is_named_with_its_type(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        encode(**arguments)
    assert ".encode()" in caught.value.hint


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(BadRequest, match="at least one record"):
        encode([])


@pytest.mark.parametrize("name", ["keys", "timestamps_us", "headers"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_column_of_another_length_is_refused_with_both_lengths(name: str, count: int) -> None:
    column: dict[str, list[Any]] = {name: [{"keys": b"k", "timestamps_us": 1, "headers": ()}[name]] * count}
    with pytest.raises(BadRequest, match=f"{count} {name} for 2 values"):
        encode([b"a", b"b"], **column)  # type: ignore[arg-type]


@pytest.mark.parametrize("time", [1 << 63, -(1 << 63) - 1, 1.5, "now", None])
def test_a_timestamp_that_is_no_64_bit_number_is_a_bad_request(time: Any) -> None:
    with pytest.raises(BadRequest, match="timestamp"):
        encode([b"a"], timestamps_us=[time])


BAD_HEADERS: list[Any] = [
    [("name", "text")],
    [(b"name", b"value")],
    [("name", None)],
    [("name",)],
    [("name", b"value", b"more")],
    {"name": b"value"},
    [5],
    [("\ud800", b"a name that has no UTF-8")],
]


@pytest.mark.parametrize("row", BAD_HEADERS)
def test_headers_that_no_reader_could_take_are_refused_before_they_are_sent(row: Any) -> None:
    with pytest.raises(BadRequest, match="header") as caught:
        encode([b"a"], headers=[row])
    assert "(name, value) pairs" in caught.value.hint


@pytest.mark.parametrize("fields", [{"producer_id": -1}, {"sequence": 1 << 64}])
def test_a_producer_outside_64_bits_is_refused_with_its_value(fields: dict[str, int]) -> None:
    with pytest.raises(BadRequest, match=str(next(iter(fields.values())))):
        encode([b"a"], **fields)  # type: ignore[arg-type]


class Unjoinable(bytes):
    """Bytes that say they are huge: whoever joins them before looking at the sizes gives itself away."""

    def __len__(self) -> int:
        return columns.MAX_BODY_BYTES


@pytest.mark.parametrize("codec", list(Codec))
def test_too_large_a_value_is_refused_before_its_bytes_are_joined(codec: Codec) -> None:
    for values in ([Unjoinable()], [Unjoinable(), b"x"]):
        with pytest.raises(MessageTooLarge, match="over the limit of 2147418112"):
            encode(values, codec=codec)


def test_values_past_the_reach_of_int32_ends_are_too_large() -> None:
    one = bytes(1 << 20)
    with pytest.raises(MessageTooLarge, match="2049 records"):
        encode([one] * 2049)


def test_columns_that_are_too_large_only_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_BODY_BYTES", 4096)
    assert len(encode([bytes(3000)], keys=[b"k"])) < 4096
    with pytest.raises(MessageTooLarge, match="over the limit of 4096"):
        encode([bytes(3000)], keys=[bytes(3000)])


def test_a_body_that_compression_makes_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body_size = 16
    monkeypatch.setattr(columns, "MAX_BODY_BYTES", body_size)
    assert encode([b"8 bytes."])
    with pytest.raises(MessageTooLarge, match="over the limit of 16"):
        encode([b"8 bytes."], codec=Codec.ZSTD)


MISSING = [
    ("lz4.block", "Codec.LZ4", "compression"),
    ("zstandard", "Codec.ZSTD", "compression"),
]


@pytest.mark.parametrize(("package", "codec", "extra"), MISSING)
def test_a_codec_that_is_not_installed_names_the_extra(package: str, codec: str, extra: str) -> None:
    run_without(
        package,
        f"""
        from ister.columns import Codec
        from ister.errors import DependencyMissing
        from ister.frame import encode
        try:
            encode([b"a"], codec={codec})
        except DependencyMissing as error:
            assert "{extra}" in error.hint, error.hint
        else:
            raise SystemExit("not refused")
        """,
    )


def test_arrow_that_is_not_installed_names_the_extra() -> None:
    run_without(
        "pyarrow",
        """
        from ister.errors import DependencyMissing
        try:
            import ister.arrow
        except DependencyMissing as error:
            assert "ister[arrow]" in error.hint, error.hint
        else:
            raise SystemExit("not refused")
        """,
    )


def test_arrow_batches_need_no_numpy() -> None:
    run_without(
        "numpy",
        """
        from ister.arrow import encode_record_batch, to_record_batch
        from ister.frame import encode, frames_in
        rows = dict(keys=[b"k", None], timestamps_us=[1, 2], headers=[[("n", b"v")], []])
        frames = frames_in(encode([b"a", None], **rows) + encode([b"b"]) + encode([b"c"] * 100))
        batch = to_record_batch(frames)
        assert batch.num_rows == 103
        assert encode_record_batch(batch.slice(1, 50))
        """,
    )


def run_without(package: str, code: str) -> None:
    """Run this in a process where the package cannot be imported."""
    lines = [line[8:] for line in code.strip("\n").splitlines()]
    program = "\n".join(["import sys", f"sys.modules[{package!r}] = None", *lines])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
