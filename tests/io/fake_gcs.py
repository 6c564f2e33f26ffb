"""What a store of Google's answers, as far as ours asks: its XML interface, in this process, with one bucket.

No emulator of it installs from PyPI. This one keeps objects in memory and knows conditions, ranges, copies,
uploads in parts, and lists in pages of two; whom it answers it does not ask.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "history"
PAGE = 2
_DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


class _Bucket:
    def __init__(self, *, knows_conditions: bool) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.knows_conditions = knows_conditions


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: _Bucket

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        name = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        return name, query, self.rfile.read(int(self.headers.get("content-length", 0)))

    def _answer(self, status: int, body: bytes = b"", size: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header.replace("_", "-"), value)
        self.send_header("content-length", str(len(body) if size is None else size))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        name, query, data = self._asked()
        with self.bucket.lock:
            if "uploadId" in query:
                self.bucket.uploads[query["uploadId"]][int(query["partNumber"])] = data
                self._answer(200, etag=_etag(data))
                return
            is_conditional = self.headers.get("x-goog-if-generation-match") == "0"
            if is_conditional and self.bucket.knows_conditions and name in self.bucket.objects:
                self._answer(412)
                return
            source = self.headers.get("x-goog-copy-source")
            if source is not None:
                key = unquote(source).removeprefix("/").removeprefix(f"{BUCKET}/")
                if key not in self.bucket.objects:
                    self._answer(404)
                    return
                data = self.bucket.objects[key]
            self.bucket.objects[name] = data
        self._answer(200, etag=_etag(data), x_goog_generation="1")

    def do_POST(self) -> None:
        name, query, _ = self._asked()
        with self.bucket.lock:
            if "uploads" in query:
                upload = str(len(self.bucket.uploads))
                self.bucket.uploads[upload] = {}
                said = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                self._answer(200, f"{said}</InitiateMultipartUploadResult>".encode())
                return
            parts = self.bucket.uploads.pop(query["uploadId"])
            self.bucket.objects[name] = b"".join(part for _, part in sorted(parts.items()))
            said = f"<ETag>{_etag(self.bucket.objects[name])}</ETag>"
        self._answer(
            200,
            f"<CompleteMultipartUploadResult>{said}</CompleteMultipartUploadResult>".encode(),
            x_goog_generation="1",
        )

    def do_GET(self) -> None:
        name, query, _ = self._asked()
        with self.bucket.lock:
            if not name:
                self._answer(200, self._listed(query).encode())
                return
            data = self.bucket.objects.get(name)
        if data is None:
            self._answer(404)
            return
        headers = {"etag": _etag(data), "last_modified": _DATE, "x_goog_generation": "1"}
        wanted = self.headers.get("range")
        if wanted is None:
            self._answer(200, data, **headers)
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        if int(first) >= len(data):
            self._answer(416)
            return
        end = min(int(last) + 1, len(data))
        headers["content_range"] = f"bytes {first}-{end - 1}/{len(data)}"
        self._answer(206, data[int(first) : end], **headers)
        return

    def do_HEAD(self) -> None:
        name, _, _ = self._asked()
        data = self.bucket.objects.get(name)
        if data is None:
            self._answer(404)
            return
        self._answer(200, size=len(data), etag=_etag(data), last_modified=_DATE, x_goog_generation="1")
        return

    def do_DELETE(self) -> None:
        name, query, _ = self._asked()
        with self.bucket.lock:
            if "uploadId" in query:
                self.bucket.uploads.pop(query["uploadId"], None)
                self._answer(204)
                return
            self._answer(404 if self.bucket.objects.pop(name, None) is None else 204)
            return

    def _listed(self, query: dict[str, str]) -> str:
        after, prefix = query.get("continuation-token", ""), query.get("prefix", "")
        names = sorted(one for one in self.bucket.objects if one.startswith(prefix) and one > after)
        shown = names[:PAGE]
        entries = "".join(
            f"<Contents><Key>{escape(one)}</Key><Size>{len(self.bucket.objects[one])}</Size>"
            f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for one in shown
        )
        more = ""
        if len(names) > PAGE:
            more = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>"
        return f"<ListBucketResult>{entries}{more}</ListBucketResult>"


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextmanager
def gcs_server(*, knows_conditions: bool = True) -> Iterator[dict[str, str]]:
    """What the environment of somebody who uses it must have."""
    bucket = _Bucket(knows_conditions=knows_conditions)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": bucket}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    account = {
        "gcs_base_url": f"http://127.0.0.1:{server.server_port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    try:
        yield {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}
    finally:
        server.shutdown()
        server.server_close()
