"""`ister shell`: the text protocol by hand, by `-c`, or from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from ister.cli.common import client_options, pass_terminal
from ister.cli.terminal import Terminal
from ister.errors import IsterError

if TYPE_CHECKING:
    from ister.cli.shell_lines import Line
    from ister.cli.text_client import TextClient

PROMPT: Final = "ister> "
FAILED: Final = 1


@click.command()
@click.option(
    "-c",
    "commands",
    metavar="COMMAND",
    multiple=True,
    help="Do this and leave; may be given several times.",
)
@client_options
@pass_terminal
def shell(terminal: Terminal, commands: tuple[str, ...]) -> None:
    """Talk the text protocol: REGISTER, PUT, GET, STATE and METRICS, a line each.

    On a terminal it asks for commands, with history and completion. In a pipe it takes them from the standard
    input and prints the replies, a line each. GET hands out every record once: the clients of all nodes share
    one place in the topic.

    A payload in quotes is sent without them; "..." may have \\n, \\t and \\xff in it. With -c or in a pipe
    the exit code is 1 if any reply was ERR.

    \b
    Examples:
      ister shell
      ister shell -c 'REGISTER logs' -c 'PUT logs "application started"' -c 'GET logs'
      echo 'GET logs' | ister shell --bootstrap 10.0.0.1:9091
      ister shell -c 'STATE logs' --output json
    """
    from ister.cli.text_client import TextClient

    client = TextClient(terminal.bootstrap)
    client.connect()
    conversation = Conversation(terminal, client)
    try:
        if commands:
            conversation.run(os.fsencode(command) for command in commands)
        elif terminal.input_is_terminal and terminal.is_terminal:
            conversation.interact()
            return
        else:
            conversation.run(piped_lines())
    finally:
        client.close()
    if conversation.errors:
        click.get_current_context().exit(FAILED)


def piped_lines() -> Iterator[bytes]:
    if sys.stdin is not None:
        for line in sys.stdin.buffer:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


class Conversation:
    """Commands in, replies out."""

    def __init__(self, terminal: Terminal, client: TextClient) -> None:
        self._terminal = terminal
        self._client = client
        self.topics: dict[str, None] = {}
        """Those that a command was carried out on, for completion."""
        self.errors = 0

    def run(self, lines: Iterable[bytes]) -> None:
        """One after the other, until the end or an `exit`."""
        for typed in lines:
            if not self._obey(typed):
                return

    def interact(self) -> None:
        from ister.cli.shell_history import history, history_path
        from ister.cli.shell_lines import complete

        terminal = self._terminal
        terminal.tell(f"connected to {self._client.peer}; `help` lists the commands, Ctrl-D leaves")
        with history(
            history_path(terminal.environ, "shell_history"),
            lambda before, typed: complete(before, typed, self.topics),
        ):
            while True:
                try:
                    typed = input(PROMPT)
                except EOFError:
                    terminal.tell("")
                    return
                except KeyboardInterrupt:
                    terminal.tell("")  # the line is thrown away, the shell stays
                    continue
                try:
                    if not self._obey(typed.encode("utf-8", "surrogateescape")):
                        return
                except KeyboardInterrupt:
                    terminal.tell("\ninterrupted: the reply is lost, the command may have been carried out")
                except IsterError as error:
                    terminal.tell(
                        f"{terminal.paint_errors('red', f'error [{error.code}]:')} {error.message}\n"
                        f"{terminal.paint_errors('dim', 'hint:')} {error.hint}"
                    )

    def _obey(self, typed: bytes) -> bool:
        """Do what a line says; False if it says to leave."""
        from ister.cli.shell_lines import HELP, LEAVING, parse_line

        line = parse_line(typed)
        if line is None:
            return True
        if line.word == "HELP":
            self._terminal.say(HELP)
            return True
        if line.word in LEAVING:
            return False
        self._ask(line)
        return True

    def _ask(self, line: Line) -> None:
        from ister.cli.shell_lines import Reply

        reply = Reply(line, self._client.ask(line.wire))
        if reply.is_error:
            self.errors += 1
        elif line.topic:
            self.topics[line.topic] = None
        terminal = self._terminal
        if terminal.wants_json:
            terminal.write_objects([reply.to_object()])
        elif terminal.is_terminal:
            shown = reply.to_pretty().decode("utf-8", "surrogateescape")
            terminal.say(terminal.paint("red", shown) if reply.is_error else shown)
        else:
            terminal.write(reply.data + b"\n")
