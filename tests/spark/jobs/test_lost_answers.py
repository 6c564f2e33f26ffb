"""A store that does what it is asked and does not say so: nothing is taken back that may have been done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from job_helpers import data_files, offsets_of, read_parquet
from test_lake_tables import written

from ister.spark.jobs.lake.folders import LocalFolder, open_folder
from ister.spark.jobs.lake.parquet import ParquetTable
from ister.spark.jobs.lake.table import Coverage, Origin
from ister.spark.jobs.running import Stop
from ister.spark.jobs.tiering import optimizing
from ister.spark.jobs.tiering.optimizing import RewritePlan, optimize_table
from ister.spark.jobs.tiering.plan import log_schema

pytestmark = pytest.mark.spark

ORIGIN = Origin("c1", "default/orders", 7, partition_by="date")


class Bucket(ThreadingHTTPServer):
    """As much of S3 as a folder needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.objects: dict[str, bytes] = {}
        self.answers_lost = 0
        """Of how many of the next objects: each is kept, and the answer is 503."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: Any) -> None:
        pass

    @property
    def bucket(self) -> Bucket:
        return cast(Bucket, self.server)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["If-None-Match"] == "*" and self.path in self.bucket.objects:
            self.answer(412)
            return
        self.bucket.objects[self.path] = body
        self.bucket.answers_lost -= 1
        self.answer(503 if self.bucket.answers_lost >= 0 else 200)

    def do_GET(self) -> None:
        found = self.bucket.objects.get(self.path)
        self.answer(404 if found is None else 200, found or b"")

    def do_DELETE(self) -> None:
        self.bucket.objects.pop(self.path, None)
        self.answer(204)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"<DeleteResult><Deleted><Key>probe</Key></Deleted></DeleteResult>")

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 19 Nov 2026 20:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with Bucket() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_what_was_put_and_not_answered_for_was_put(bucket: Bucket) -> None:
    folder = open_folder("s3://lake/orders")
    bucket.answers_lost = 1
    assert folder.put_if_absent("a.json", "ours")
    assert not folder.put_if_absent("a.json", "another job's")
    assert folder.read("a.json") == "ours"


def test_a_store_that_does_not_answer_for_its_first_object_is_a_good_one(bucket: Bucket) -> None:
    bucket.answers_lost = 1
    open_folder("s3://lake/orders").make("_ister/commits")


class Unsaid(LocalFolder):
    """Says of a commit that it was not taken, and has it."""

    def put_if_absent(self, name: str, text: str) -> bool:
        super().put_if_absent(name, text)
        return False


def here(_spark: object, work: partial[object], parts: list[object], **_how: object) -> Iterator[object]:
    yield from ((number, work(part)) for number, part in enumerate(parts))


def test_files_of_an_exchange_that_seems_refused_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizing, "run_tasks", here)
    table = ParquetTable.create(str(tmp_path), ORIGIN, log_schema(), ("date",))
    for start in (0, 10):
        covered = table.coverage()
        assert table.commit(written(table, start, start + 10), covered, Coverage(0, start + 10))
    described = {"version": 1, "origin": ORIGIN.to_text()}
    plan = RewritePlan(table.location, pa.schema(log_schema()), "date", 1 << 20, False)
    unsaid: Any = ParquetTable(Unsaid(tmp_path), described)
    optimize_table(cast(Any, None), unsaid, plan, at_once=1, stop=Stop())
    assert list(offsets_of(read_parquet(tmp_path))) == list(range(20))
    assert {str(file.relative_to(tmp_path)) for file in data_files(tmp_path)} >= {
        file.path for file in table.files()
    }
