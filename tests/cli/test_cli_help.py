"""Every command explains itself, and the command line starts without anything heavy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from cli_fakes import Ister

from ister.cli.main import COMMANDS, EXIT_CODES, cli

HEAVY = ("asyncio", "rich", "msgspec", "pyarrow", "pyspark", "logging")


def commands() -> Iterator[tuple[str, ...]]:
    """Every command and sub-command; `bench` has tests of its own."""
    for name in COMMANDS:
        if name == "bench":
            continue
        yield (name,)
        found = cli.get_command(click.Context(cli), name)
        if isinstance(found, click.Group):
            yield from ((name, child) for child in found.list_commands(click.Context(found)))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_a_help_with_examples(cli: Ister, path: tuple[str, ...]) -> None:
    outcome = cli(*path, "--help")
    text = outcome.out.decode()
    assert outcome.code == 0
    assert f"Usage: ister {' '.join(path)}" in text
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    assert any(f"ister {path[0]}" in example for example in examples)
    assert "--output [text|json]" in text
    assert path in (("serve",), ("dev",)) or "--bootstrap HOST:PORT" in text


def test_the_main_help_has_every_command_and_every_exit_code(cli: Ister) -> None:
    text = cli("--help").out.decode()
    for name, command in COMMANDS.items():
        assert f"  {name}" in text
        assert command.about in text
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in text


def test_help_and_version_load_nothing_heavy() -> None:
    check = (
        "import sys; from ister.cli.main import run; "
        f"codes = [run([flag], {{}}) for flag in ('--help', '--version')]; "
        f"print([name for name in {HEAVY!r} if name in sys.modules], codes, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[] [0, 0]"


def test_the_version_is_the_package_s(cli: Ister) -> None:
    from importlib.metadata import version

    assert cli("--version").out.decode() == f"ister {version('ister')}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["tpoic"], "there is no command 'tpoic'; did you mean topic?"),
        (["topic", "lst"], "there is no command 'lst'; did you mean list?"),
        (["put", "t", "v", "--compresion", "lz4"], "--compression"),
        (["topic", "create", "t", "--segment-byte", "1"], "--segment-bytes"),
    ],
)
def test_a_mistyped_command_or_option_is_answered_with_the_nearest(
    cli: Ister, args: list[str], said: str
) -> None:
    outcome = cli(*args)
    assert outcome.code == 2
    assert outcome.err.startswith("error [usage]: ")
    assert said in outcome.err.splitlines()[0]
    assert "hint: See `ister" in outcome.err


def test_a_shell_gets_its_completions(cli: Ister, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "ister to")
    monkeypatch.setenv("COMP_CWORD", "1")
    outcome = cli(environ={"_ISTER_COMPLETE": "bash_complete"})
    assert (outcome.code, outcome.out) == (0, b"plain,topic\n")


def test_the_reference_pages_are_what_the_code_says() -> None:
    from pathlib import Path

    script = Path(__file__).parents[2] / "scripts" / "reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
