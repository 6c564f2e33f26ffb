"""Write the reference pages that are made from the code: docs/reference/config.md and cli.md.

python scripts/reference.py            write them
python scripts/reference.py --check    exit with 1 if they are not what the code says
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ister.cli.common import HELP_WIDTH
from ister.cli.main import COMMANDS, EXIT_CODES, cli
from ister.config import ALIASES, PREFIX, TOPIC_DEFAULTS, BrokerConfig, specs
from ister.settings import Spec, show

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py from the code; edit it there. -->"


def config_page() -> str:
    defaults = BrokerConfig()
    groups = {
        "The broker": [name for name in specs() if name not in TOPIC_DEFAULTS],
        "Defaults of topics": [name for name in specs() if name in TOPIC_DEFAULTS],
    }
    lines = [
        MADE,
        "",
        "# Configuration",
        "",
        "`ister serve` takes its settings from four places, each over the one before: the defaults below,",
        "the TOML file given with `--config`, the environment, the command line. A name not in this list",
        "is an error wherever it stands.",
        "",
        f"In the environment a setting is `{PREFIX}` and its name in capitals: `{PREFIX}DATA_DIR`. On the",
        "command line it is an option of its own where there is one, and `--set name=value` everywhere.",
        "",
        "Sizes may have a unit: `4096`, `64KiB`, `1GiB` (`KB`, `MB` and `GB` are powers of 1000). So may",
        "durations: `250ms`, `10s`, `5m`, `2h`, `7d`; a bare number is in milliseconds.",
        "",
        "```toml",
        'data_dir = "/var/lib/ister"',
        'client_host = "0.0.0.0"',
        'hot_tail_bytes = "128MiB"',
        'drain_timeout_ms = "30s"',
        "```",
    ]
    for title, names in groups.items():
        lines += ["", f"## {title}", "", "| setting | default | allowed | what it is |", "|---|---|---|---|"]
        lines += [config_row(name, specs()[name], getattr(defaults, name)) for name in names]
    lines += ["", "## Other names", ""]
    lines += [f"- `{PREFIX}{old.upper()}` is `{new}`." for old, new in ALIASES.items()]
    lines += [
        f"- `{PREFIX}DISABLE_IO_URING` is accepted and has no effect: there is no io_uring in Ister.",
        "",
    ]
    return "\n".join(lines)


def config_row(name: str, spec: Spec, default: int | str | bool) -> str:
    shown = show(spec.kind, default)
    allowed = spec.allowed.replace("|", "\\|")
    return f"| `{name}` | {f'`{shown}`' if shown else 'empty'} | {allowed} | {spec.about} |"


def cli_page() -> str:
    lines = [MADE, "", "# The command line", "", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += [
        "",
        "Errors go to the standard error as `error [code]: message` and `hint: what to do`; with",
        "`--output json` as one object with the keys `error`, `message` and `hint`.",
    ]
    root = click.Context(cli, info_name="ister", help_option_names=["-h", "--help"])
    lines += help_section(root)
    for name in COMMANDS:
        if name == "bench":
            continue  # it has a page of its own, with its figures
        command = cli.get_command(root, name)
        assert command is not None
        lines += sections(command, name, root)
    return "\n".join([*lines, ""])


def sections(command: click.Command, name: str, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    lines = help_section(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            lines += sections(found, child, context)
    return lines


def help_section(context: click.Context) -> list[str]:
    context.terminal_width = HELP_WIDTH
    text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
    return ["", f"## {context.command_path}", "", "```text", text, "```"]


PAGES = {"config.md": config_page, "cli.md": cli_page}


def main(arguments: list[str]) -> int:
    stale = []
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"not what the code says: {', '.join(stale)}; run python scripts/reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
