"""`ister serve` as a child process: started, killed, stopped, and started again on the same directory."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

READY_SECONDS = 30


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class BrokerProcess:
    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.port = free_port()
        self.settings = settings
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it takes connections; raises with its log if it ends instead."""
        self.starts += 1
        command = [
            sys.executable,
            "-c",
            "from ister.cli.main import main; main()",
            "serve",
            "--output",
            "json",
        ]
        command += ["--data-dir", str(self.directory / "data"), "--client-port", str(self.port)]
        command += ["--admin-port", "-1", "--log-file", str(self.directory / "broker.log")]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(READY_SECONDS)
            log = (self.directory / "broker.log").read_text(encoding="utf-8")
            raise AssertionError(f"the broker ended with code {code}:\n{log[-3000:]}")
        assert json.loads(line)["event"] == "ready"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        code = process.wait(READY_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return code
