"""`ister shell`: what is sent for a line, what is shown for a reply, and what its exit code says."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from ister.broker.node.process import BrokerInfo, start
from ister.cli.main import run
from ister.cli.shell_lines import Line, Reply, complete, parse_line, unquote
from ister.config import BrokerConfig
from tests.text.served import PATIENCE_S, Served, WalrusClient, serve

ISTER = [sys.executable, "-c", "from ister.cli.main import main; main()"]


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: str


Shell = Callable[..., Outcome]


@pytest.fixture
def served() -> Iterator[Served]:
    with serve() as made:
        yield made


@pytest.fixture
def shell(
    served: Served, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """`ister shell` in this process, not on a terminal."""

    def call(*args: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False))
        code = run(["shell", "--bootstrap", served.address(), *args], {})
        captured = capsysbinary.readouterr()
        return Outcome(code, captured.out, captured.err.decode())

    return call


# Lines.


@pytest.mark.parametrize(
    ("typed", "wire"),
    [
        (b"PUT logs hello", b"PUT logs hello"),
        (b"put logs hello", b"PUT logs hello"),
        (b'PUT logs "hello world"', b"PUT logs hello world"),
        (b"PUT logs 'hello world'", b"PUT logs hello world"),
        (b"PUT logs hello world", b"PUT logs hello world"),
        (b'PUT logs  "hello"  ', b"PUT logs hello"),
        (b"PUT logs   hello ", b"PUT logs   hello "),
        (rb'PUT logs "a\nb\t\xff\"c\" \q"', b'PUT logs a\nb\t\xff"c" \\q'),
        (rb"PUT logs 'a\nb'", rb"PUT logs a\nb"),
        (b'PUT logs {"a": "b"}', b'PUT logs {"a": "b"}'),
        (b'PUT logs "a" and "b"', b'PUT logs "a" and "b"'),
        (b"PUT logs 'tis", b"PUT logs 'tis"),
        (b'PUT logs ""', b"PUT logs "),
        (b"PUT logs \xff\x00", b"PUT logs \xff\x00"),
        (b"PUT logs", b"PUT logs"),
        (b"Get   logs  ", b"GET logs"),
        (b"  state logs", b"STATE logs"),
        (b"metrics", b"METRICS"),
        (b"FROB logs", b"FROB logs"),
    ],
)
def test_a_line_is_sent_raw_with_its_word_in_capitals_and_without_quotes(typed: bytes, wire: bytes) -> None:
    line = parse_line(typed)
    assert line is not None
    assert line.wire == wire


@pytest.mark.parametrize("typed", [b"", b"   ", b"\t"])
def test_an_empty_line_is_nothing(typed: bytes) -> None:
    assert parse_line(typed) is None


@pytest.mark.parametrize("typed", [b"exit", b"QUIT", b"help", b" Help "])
def test_the_shell_s_own_words_are_not_sent(typed: bytes) -> None:
    line = parse_line(typed)
    assert line is not None
    assert (line.word, line.wire) == (typed.strip().upper().decode(), b"")


def test_what_is_no_single_quoted_string_is_left_alone() -> None:
    assert unquote(b'"a\\"') == b'"a\\"', "its last quote is an escaped one"
    assert unquote(b"'a'b'") == b"'a'b'"


def test_words_and_topics_are_completed() -> None:
    assert complete("", "p", []) == ["PUT "]
    assert complete("", "", []) == [
        "REGISTER ",
        "PUT ",
        "GET ",
        "STATE ",
        "METRICS",
        "help",
        "exit",
        "quit",
    ]
    assert complete("get ", "l", ["logs", "later", "other"]) == ["logs ", "later "]
    assert complete("METRICS ", "l", ["logs"]) == []
    assert complete("PUT logs ", "l", ["logs"]) == []


def test_a_reply_on_a_terminal_can_t_play_with_the_screen() -> None:
    line = Line("GET", "t", b"GET t")
    assert Reply(line, b"OK \x1b[2Jgone\xff").to_pretty() == b"OK \\x1b[2Jgone\\xff"
    assert Reply(Line("STATE", "t", b""), b'{"a":1}').to_pretty() == b'{\n  "a": 1\n}'
    assert not Reply(line, b"OK ERR").is_error
    assert not Reply(line, b'{"a"}').is_json, "a record is no JSON reply, whatever it holds"


# Against a broker's sessions.


def test_commands_given_one_by_one_print_their_replies(shell: Shell) -> None:
    done = shell("-c", "REGISTER logs", "-c", 'put logs "hello world"', "-c", "GET logs", "-c", "GET logs")
    assert done == (0, b"OK\nOK\nOK hello world\nEMPTY\n", "")


def test_a_pipe_s_lines_are_commands_and_bytes_stay_bytes(shell: Shell) -> None:
    done = shell(stdin=b"PUT logs \xff\x00 \xfe\r\n\nGET logs\nexit\nGET logs\n")
    assert done == (0, b"OK\nOK \xff\x00 \xfe\n", "")


def test_any_err_makes_the_exit_code_1_and_the_rest_is_still_done(shell: Shell) -> None:
    done = shell(stdin=b"GET nowhere\nFROB\nPUT logs x\n")
    unknown, frob, put = done.out.splitlines()
    assert unknown.startswith(b"ERR unknown topic nowhere")
    assert frob.startswith(b"ERR unknown command FROB")
    assert (put, done.code) == (b"OK", 1)


def test_json_output_is_one_object_a_reply(shell: Shell) -> None:
    done = shell(
        *("--output", "json", "-c", "PUT logs hello", "-c", "GET logs", "-c", r'PUT logs "\xff"'),
        *("-c", "GET logs", "-c", "GET logs", "-c", "STATE logs", "-c", "GET nowhere", "-c", "METRICS"),
    )
    put, hello, _, binary, empty, state, unknown, metrics = map(json.loads, done.out.splitlines())
    assert put == {"command": "PUT", "topic": "logs", "status": "ok"}
    assert hello == {"command": "GET", "topic": "logs", "status": "ok", "value": "hello"}
    assert (binary["value"], binary["value_encoding"]) == ("/w==", "base64")
    assert empty["status"] == "empty"
    assert state["data"]["current_segment"] == 1
    assert (unknown["status"], unknown["message"].startswith("unknown topic nowhere")) == ("error", True)
    assert metrics["data"]["state"] == "Leader"
    assert done.code == 1


def test_a_record_that_is_too_long_is_an_err_of_its_own(shell: Shell) -> None:
    done = shell(stdin=b"PUT logs " + b"x" * 70_000 + b"\nGET nowhere\n")
    assert done.out.startswith(b"ERR invalid frame length: 70009 bytes")
    assert done.code == 1


def test_nobody_there_is_exit_code_3() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert run(["shell", "--bootstrap", address, "-c", "METRICS"], {}) == 3


def test_a_broker_that_goes_away_is_exit_code_3(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        leaving = threading.Thread(target=lambda: listener.accept()[0].close())
        leaving.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert run(["shell", "--bootstrap", address, "-c", "METRICS"], {}) == 3
        leaving.join(PATIENCE_S)
    assert b"connection-failed" in capsysbinary.readouterr().err


@contextmanager
def other_ports() -> Iterator[BrokerInfo]:
    """A broker of a cluster, in a thread."""
    ready: list[BrokerInfo] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_ready = threading.Event()

    async def main(directory: str) -> None:
        config = BrokerConfig(
            data_dir=directory, client_port=0, admin_port=0, peer_port=0, bootstrap_cluster=True
        )
        running = await start(config)
        stop.append((asyncio.get_running_loop(), asyncio.Event()))
        ready.append(running.info)
        is_ready.set()
        await stop[0][1].wait()
        await running.stop()

    with tempfile.TemporaryDirectory() as directory:
        thread = threading.Thread(target=lambda: asyncio.run(main(directory)))
        thread.start()
        assert is_ready.wait(PATIENCE_S)
        try:
            yield ready[0]
        finally:
            stop[0][0].call_soon_threadsafe(stop[0][1].set)
            thread.join(PATIENCE_S)


def test_a_port_that_is_not_for_clients_says_what_it_is(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with other_ports() as info:
        for port, code, said in (
            (info.peer_port, 1, b"this is the port for other brokers, and a client of the text protocol"),
            (info.admin_port, 3, b"speaks HTTP, as the port for metrics does"),
        ):
            assert run(["shell", "--bootstrap", f"127.0.0.1:{port}", "-c", "METRICS"], {}) == code
            done = capsysbinary.readouterr()
            assert done.out == b""
            assert said in done.err, done.err
            assert b"9091 unless it was set" in done.err


def test_help_lists_the_commands(shell: Shell) -> None:
    assert b"PUT <topic> <payload>" in shell("-c", "help").out


class Typist:
    """A person at a terminal."""

    def __init__(self, served: Served, home: Path) -> None:
        self._master, slave = pty.openpty()
        environ = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "dumb", "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            [*ISTER, "shell", "--bootstrap", served.address()],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = b""

    def expect(self, text: bytes) -> bytes:
        """Read until it is there; returns what came before it."""
        while text not in self.seen:
            assert select.select([self._master], [], [], PATIENCE_S)[0], self.seen
            piece = os.read(self._master, 4096)
            assert piece, self.seen
            self.seen += piece
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def leave(self, text: bytes) -> int:
        self.type(text)
        code = self.process.wait(PATIENCE_S)
        os.close(self._master)
        return code


def test_at_a_terminal_it_asks_completes_remembers_and_goes_on_after_an_err(
    served: Served, tmp_path: Path
) -> None:
    typist = Typist(served, tmp_path)
    typist.expect(b"ister> ")
    typist.type(b'put logs "hello there"\n')
    typist.expect(b"OK")
    typist.expect(b"ister> ")
    typist.type(b"GET lo\t\n")
    typist.expect(b"OK hello there")
    typist.expect(b"ister> ")
    typist.type(b"GET nowhere\n")
    typist.expect(b"ERR unknown topic nowhere")
    typist.expect(b"ister> ")
    typist.type(b"STATE logs\n")
    typist.expect(b'  "current_segment": 1')
    typist.expect(b"ister> ")
    assert typist.leave(b"\x04") == 0
    assert 'put logs "hello there"' in (tmp_path / "ister" / "shell_history").read_text()
    again = Typist(served, tmp_path)
    again.expect(b"ister> ")
    again.type(b"\x10")  # the line before, from the last time
    again.expect(b"STATE logs")
    assert again.leave(b"\x15exit\n") == 0


def test_at_a_terminal_it_connects_again_when_the_broker_came_back(served: Served, tmp_path: Path) -> None:
    typist = Typist(served, tmp_path / "not" / "there")
    typist.expect(b"ister> ")
    served.disconnect()
    typist.type(b"PUT logs x\n")
    typist.expect(b"error [connection-failed]")
    typist.expect(b"ister> ")
    typist.type(b"PUT logs x\n")
    typist.expect(b"OK")
    assert typist.leave(b"quit\n") == 0
    with WalrusClient(served.address()) as client:
        assert client.ask(b"GET logs") == b"OK x"
