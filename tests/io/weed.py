"""A real S3 server for tests: SeaweedFS, from PyPI, on ports of its own, with one empty bucket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

BUCKET = "history"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "secret-that-nobody-sees"}
START_SECONDS = 60


class S3Server:
    """May be stopped, and started again on what it had."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._s3, self._master, self._volume, self._filer, self._admin = _free_ports(5)
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **_CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._s3}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        """What the environment of somebody who uses it must have."""

    def start(self) -> None:
        process = self._process = subprocess.Popen(
            [
                shutil.which("weed", path=str(Path(sys.executable).parent)) or "weed",
                "mini",
                f"-dir={self._directory}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-s3.port={self._s3}",
                f"-master.port={self._master}",
                f"-volume.port={self._volume}",
                f"-filer.port={self._filer}",
                f"-admin.port={self._admin}",
                "-master.telemetry=false",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-webdav=false",
                "-admin.ui=false",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_CREDENTIALS, "S3_BUCKET": BUCKET},
        )
        _wait(process, f"{self.environment['AWS_ENDPOINT_URL']}/{BUCKET}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(30)


@contextmanager
def s3_server(directory: Path) -> Iterator[dict[str, str]]:
    """What the environment of somebody who uses it must have."""
    server = S3Server(directory)
    try:
        server.start()
        yield server.environment
    finally:
        server.stop()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "weed has ended"
        try:
            urllib.request.urlopen(url, timeout=2)
        except urllib.error.HTTPError as error:
            if error.code == 403:  # it is there, and wants to know who asks
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"no S3 server came up at {url}")


def _free_ports(count: int) -> list[int]:
    """Below 32768: the server has others 10,000 above each of them."""
    found: list[int] = []
    with ExitStack() as held:
        port = 20_000 + os.getpid() % 10_000
        while len(found) < count:
            port += 7
            one = held.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
