"""`ister`: the entry point, the list of commands, and what each outcome means to a script."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NoReturn

import click

from ister.cli.common import HELP_WIDTH, client_options
from ister.cli.lazy import LazyCommand, LazyGroup
from ister.cli.terminal import Terminal, discard_output
from ister.errors import (
    ConfigError,
    ConnectionFailed,
    CorruptFrame,
    CorruptSegment,
    InvalidSetting,
    InvalidTopicName,
    IsterError,
    NodeUnreachable,
    ObjectNotFound,
    OffsetOutOfRange,
    ReceiptMismatch,
    RecordsLost,
    RequestTimeout,
    TableMismatch,
    UnknownSubscription,
    UnknownTopic,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
DATA_PROBLEM: Final = 5
INTERRUPTED: Final = 130

EXIT_CODES: Final = {
    OK: "done",
    FAILED: "the operation failed; or a look, as `ister cluster health` or `spark check`, found a problem",
    USAGE: "wrong usage: a command, option, name, setting or configuration",
    UNREACHABLE: "no broker could be reached, or it did not answer in time",
    NOT_FOUND: "not found: an unknown topic or subscription",
    DATA_PROBLEM: "a problem with the data: offsets that are not there, lost or corrupt records; a table "
    "of another topic",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

_BY_ERROR: Final[tuple[tuple[type[IsterError], int], ...]] = (
    (ConfigError, USAGE),
    (InvalidSetting, USAGE),
    (InvalidTopicName, USAGE),
    (ConnectionFailed, UNREACHABLE),
    (RequestTimeout, UNREACHABLE),
    (NodeUnreachable, UNREACHABLE),
    (UnknownTopic, NOT_FOUND),
    (UnknownSubscription, NOT_FOUND),
    (ObjectNotFound, NOT_FOUND),
    (OffsetOutOfRange, DATA_PROBLEM),
    (RecordsLost, DATA_PROBLEM),
    (CorruptFrame, DATA_PROBLEM),
    (CorruptSegment, DATA_PROBLEM),
    (TableMismatch, DATA_PROBLEM),
    (ReceiptMismatch, DATA_PROBLEM),
)

_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMPLETE: Final = "_ISTER_COMPLETE"
"""The variable by which a shell asks for completions."""

COMMANDS: Final = {
    "serve": LazyCommand("ister.cli.serve:serve", "Run a broker."),
    "dev": LazyCommand("ister.cli.dev:dev", "Run a cluster on this machine, to try things out."),
    "put": LazyCommand("ister.cli.put:put", "Append records to a topic."),
    "get": LazyCommand("ister.cli.read:get", "Read records at an offset."),
    "tail": LazyCommand("ister.cli.read:tail", "Follow a topic, live, from any place."),
    "shell": LazyCommand("ister.cli.shell:shell", "Talk the text protocol, line by line."),
    "topic": LazyCommand(
        "ister.cli.topic:topic", "Create, list, describe, alter, move, recover, delete topics."
    ),
    "history": LazyCommand(
        "ister.cli.history:history", "What of a topic is in the history, and if it is good."
    ),
    "why": LazyCommand("ister.cli.why:why", "Where one record is, who has it, and from where it is read."),
    "meta": LazyCommand("ister.cli.meta:meta", "The metadata as paths, to look at."),
    "move": LazyCommand("ister.cli.move:move", "The moves of topics: list, look at one, cancel."),
    "subscription": LazyCommand(
        "ister.cli.subscription:subscription", "Durable places in topics: create, list, seek, pause, delete."
    ),
    "consume": LazyCommand(
        "ister.cli.consume:consume", "Consume a subscription: each record until it is done."
    ),
    "dlq": LazyCommand("ister.cli.dlq:dlq", "Records that their subscription could not deal with."),
    "lag": LazyCommand("ister.cli.lag:lag", "How far subscriptions, and readers with a pin, are behind."),
    "cluster": LazyCommand("ister.cli.cluster:cluster", "Status, health and figures of the cluster."),
    "node": LazyCommand(
        "ister.cli.node:node", "List, add, drain, remove and promote the nodes of a cluster."
    ),
    "spark": LazyCommand("ister.cli.spark:spark", "Check that Spark and the brokers reach each other."),
    "spark-shell": LazyCommand(
        "ister.cli.spark_shell:spark_shell", "A PySpark prompt where every topic is a view."
    ),
    "pipeline": LazyCommand(
        "ister.cli.pipeline:pipeline", "Jobs over whole topics, on Spark: tables, audits."
    ),
    "bench": LazyCommand("ister.cli.bench:bench", "Measure a broker beside the raw disk."),
}

EPILOG: Final = (
    "\b\nExit codes:\n"
    + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    + "\n\n\b\nEnvironment:\n"
    "  ISTER_BOOTSTRAP  the broker to ask when --bootstrap is not given\n"
    "  ISTER_<SETTING>  any setting of `ister serve`, such as ISTER_DATA_DIR\n"
    "  NO_COLOR         no colour, even on a terminal"
)


def _show_version(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        import ister

        click.echo(f"ister {ister.__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH},
)
@client_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def cli() -> None:
    """A distributed commit log: one endless, gapless line of records for each topic.

    \b
    Examples:
      ister serve                            a durable broker, here and now
      ister put events 'hello'               append a record
      seq 1000 | ister put events --lines    append a thousand
      ister tail events --from start         read it all, then follow
      ister topic describe events            what is there
      ister dev --nodes 3                    a cluster on this machine
      ister cluster status                   how it is
    """


def exit_code(error: IsterError) -> int:
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """One run of the command line; returns its exit code."""
    if COMPLETE in environ:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "ister", COMPLETE, environ[COMPLETE])
    terminal = Terminal(environ)
    try:
        # Not `cli.main`, which has its own ideas of exit codes, and of what a closed pipe means.
        with cli.make_context("ister", list(args), obj=terminal) as context:
            result = cli.invoke(context)
        if result is not None:
            from ister.cli.render import render

            render(result, terminal)
        return OK
    except click.exceptions.Exit as done:
        return done.exit_code
    except IsterError as error:
        _complain(terminal, error.code, error.message, error.hint)
        return exit_code(error)
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.tell(error.format_message())
        return USAGE
    except click.UsageError as error:
        if _asks_for_json(args):
            terminal.output = "json"  # the parser stopped before it came to that option
        command = error.ctx.command_path if error.ctx is not None else "ister"
        _complain(terminal, "usage", error.format_message(), f"See `{command} --help`.")
        return USAGE
    except click.ClickException as error:
        _complain(terminal, "failed", error.format_message(), "")
        return FAILED
    except BrokenPipeError:
        discard_output()  # whoever read it has seen enough
        return OK
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        discard_output()  # help goes past the terminal
        _complain(terminal, "failed", f"the output cannot be written: {error.strerror}", "")
        return FAILED
    except (KeyboardInterrupt, click.Abort) as interrupt:
        if terminal.errors_to_terminal:
            terminal.tell("")  # after the ^C, so that the prompt has a line of its own
        for told in interrupt.args:
            _complain(terminal, "interrupted", str(told), "")
        return INTERRUPTED


def _asks_for_json(args: Sequence[str]) -> bool:
    return "--output=json" in args or ("--output", "json") in pairwise(args)


def _complain(terminal: Terminal, code: str, message: str, hint: str) -> None:
    if terminal.wants_json:
        import json

        terminal.tell(json.dumps({"error": code, "message": message, "hint": hint}, ensure_ascii=False))
        return
    paint = terminal.paint_errors
    terminal.tell(f"{paint('red', f'error [{code}]:')} {message}")
    if hint:
        terminal.tell(f"{paint('dim', 'hint:')} {hint}")


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:], os.environ))
