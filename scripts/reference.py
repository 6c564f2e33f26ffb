"""Write the reference pages that are made from the code: config.md, cli.md, errors.md and metrics.md.

python scripts/reference.py            write them
python scripts/reference.py --check    exit with 1 if they are not what the code says
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ister.broker.clients.server import Server
from ister.broker.node.broker import Broker
from ister.cli.common import HELP_WIDTH
from ister.cli.main import COMMANDS, EXIT_CODES, cli
from ister.cli.serve import serve
from ister.config import ALIASES, CLUSTER_FIELDS, PREFIX, TOPIC_DEFAULTS, BrokerConfig, specs
from ister.errors import BY_WIRE, IsterError
from ister.metrics import Counter, Histogram, Metric
from ister.settings import Spec, show
from ister.testing import MemoryStore, SimClock, SimDisk, SimNetwork, VirtualLoop, simulate

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py from the code; edit it there. -->"


def config_page() -> str:
    defaults = BrokerConfig()
    groups = {
        "The broker": [name for name in specs() if name not in TOPIC_DEFAULTS | CLUSTER_FIELDS],
        "The cluster": [name for name in specs() if name in CLUSTER_FIELDS],
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
    options = {option for parameter in serve.params for option in parameter.opts}
    for old, new in ALIASES.items():
        option = f"--{old.replace('_', '-')}"
        names = [f"`{PREFIX}{old.upper()}`", *([f"`{option}`"] if option in options else [])]
        lines.append(f"- {' and '.join(names)}: `{new}`.")
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


def errors_page() -> str:
    lines = [
        MADE,
        "",
        "# Errors",
        "",
        "Every error that Ister raises on purpose is a subclass of `ister.errors.IsterError`, with a message",
        "that has the values, and a hint that says what to do now. The code stays the same for ever: scripts",
        "may rely on it. The number is what travels in the binary protocol, as the kind of an answer.",
        "",
        "An error that is *retriable* may go away when the same request is sent again; the client does that",
        "by itself, within its deadline. A retry is never appended twice: producers number their batches.",
        "",
        "| code | number | class | retriable | what to do |",
        "|---|---|---|---|---|",
    ]
    lines += [error_row(kind) for _, kind in sorted(BY_WIRE.items())]
    return "\n".join([*lines, ""])


def error_row(kind: type[IsterError]) -> str:
    retriable = "yes" if kind.retriable else "no"
    return f"| `{kind.code}` | {kind.wire} | `{kind.__name__}` | {retriable} | {kind.default_hint} |"


def metrics_page() -> str:
    lines = [
        MADE,
        "",
        "# Metrics",
        "",
        "They are at `http://127.0.0.1:9190/metrics` (admin_host, admin_port) in the format of Prometheus.",
        "A histogram comes as `_bucket`, `_sum` and `_count`. Durations are in seconds. Beside these there",
        "are the usual ones of the process: memory, CPU, open files, garbage collection.",
        "",
        "| metric | kind | what it is |",
        "|---|---|---|",
    ]
    lines += [metric_row(metric) for metric in simulate(broker_metrics, seed=0)]
    return "\n".join([*lines, ""])


async def broker_metrics(loop: VirtualLoop) -> list[Metric]:
    """Those of a broker that runs; on simulated seams, where it touches nothing."""
    host = SimNetwork(loop.fork("network")).host("broker")
    disk = SimDisk(loop.fork("disk")).mount()
    store = MemoryStore(loop.fork("store")).client("broker")
    clock = SimClock(loop, loop.fork("clock"))
    broker = Broker(BrokerConfig(client_host="broker"), disk, clock, host, store=store)
    server = Server(broker, host, lambda: 0)
    try:
        await broker.start()
        await server.start()
        return broker.metrics.all()
    finally:
        await server.stop(0)
        await broker.stop()


def metric_row(metric: Metric) -> str:
    match metric:
        case Counter(name=name):
            kind, shown = "counter", name if name.endswith("_total") else f"{name}_total"
        case Histogram(name=shown):
            kind = "histogram"
        case _:
            kind, shown = "gauge", metric.name
    return f"| `ister_{shown}` | {kind} | {metric.help} |"


PAGES = {
    "config.md": config_page,
    "cli.md": cli_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
}


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
