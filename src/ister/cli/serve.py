"""`ister serve`: a broker in this process, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ister.cli.common import output_option, parse_pairs, pass_terminal
from ister.cli.terminal import Terminal
from ister.errors import ConfigError

if TYPE_CHECKING:
    from ister.broker.process import BrokerInfo
    from ister.config import BrokerConfig, ConfigFile


@click.command()
@click.option("--data-dir", metavar="DIRECTORY", help="Where the log is kept.  [default: ister-data]")
@click.option("--client-port", metavar="PORT", help="The port for clients; 0 takes any.  [default: 9091]")
@click.option("--client-host", metavar="HOST", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--client-advertise-host", metavar="HOST", help="The host that clients are told to use.")
@click.option("--admin-port", metavar="PORT", help="For metrics; 0 takes any, -1 is off.  [default: 9190]")
@click.option("--node-id", metavar="NUMBER", help="This broker's number in its cluster.  [default: 1]")
@click.option("--config", "config_path", metavar="FILE", help="A TOML file with any of the settings.")
@click.option(
    "--log-level",
    metavar="LEVEL",
    help="debug, info, warning, error; or info,ister.wal=debug.  [default: info]",
)
@click.option("--log-file", metavar="FILE", help="Append the logs to this file.  [default: standard error]")
@click.option("--log-format", metavar="FORMAT", help="text or json.  [default: text]")
@click.option("--set", "others", metavar="SETTING=VALUE", multiple=True, help="Any other setting.")
@output_option
@pass_terminal
def serve(
    terminal: Terminal, /, config_path: str | None, others: tuple[str, ...], **flags: str | None
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which let it finish what it has accepted.

    Settings come from the command line, else from the environment (ISTER_DATA_DIR, ...), else from
    --config, else from the defaults. With no setting at all it is a durable broker for this machine.

    With --output json, one object {"event": "ready", ...} on the standard output says that it takes
    connections, and where.

    \b
    Examples:
      ister serve
      ister serve --data-dir /var/lib/ister --client-host 0.0.0.0
      ister serve --config ister.toml --log-level info,ister.wal=debug
      ister serve --set hot_tail_bytes=128MiB --set fsync=interval
      ister serve --client-port 0 --admin-port -1 --output json
    """
    config = read_config(terminal, config_path, others, flags)
    start_logs(terminal, config)
    from ister.broker.process import run

    run(config, on_ready=lambda info: announce(terminal, config, info))


def read_config(
    terminal: Terminal, path: str | None, others: tuple[str, ...], flags: dict[str, str | None]
) -> BrokerConfig:
    from ister.config import load_config

    named: dict[str, object] = {name: value for name, value in flags.items() if value is not None}
    for name, value in parse_pairs(others, "--set").items():
        field = name.replace("-", "_")
        if field in named:
            raise click.UsageError(f"{field} is given twice: by its own option and by --set")
        named[field] = value
    return load_config(read_file(path) if path is not None else None, terminal.environ, named)


def read_file(path: str) -> ConfigFile:
    from ister.config import ConfigFile

    try:
        return ConfigFile(path, Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the configuration file {path} cannot be read: {reason}", hint="Check the path after --config."
        ) from error


def start_logs(terminal: Terminal, config: BrokerConfig) -> None:
    from ister.config import environment_notices
    from ister.logs import get_logger, set_up_logs

    set_up_logs(
        config.log_level, style=config.log_format, file=config.log_file, colour=terminal.paint_errors.on
    )
    for notice in environment_notices(terminal.environ):
        get_logger("ister.config").warning(notice)


def announce(terminal: Terminal, config: BrokerConfig, info: BrokerInfo) -> None:
    """Say that the broker takes connections: an object for scripts, a few lines for a person."""
    if terminal.wants_json:
        terminal.write_objects([ready_object(info)])
    elif terminal.is_terminal:
        terminal.say(banner(terminal, config, info))


def ready_object(info: BrokerInfo) -> dict[str, Any]:
    return {"event": "ready", **info._asdict()}


def banner(terminal: Terminal, config: BrokerConfig, info: BrokerInfo) -> str:
    from ister.cli.render import pairs

    paint = terminal.paint
    address = f"{info.client_host}:{info.client_port}"
    metrics = f"http://{config.admin_host}:{info.admin_port}/metrics" if info.admin_port > 0 else "off"
    facts = [
        ("clients", paint("green", address)),
        ("metrics", metrics),
        ("data", str(info.data_dir)),
        ("cluster", f"{info.cluster_id}, node {info.node_id}"),
    ]
    where = "" if address == "127.0.0.1:9091" else f" --bootstrap {address}"
    tries = [
        f"ister put events 'hello'{where}",
        f"ister tail events --from start{where}",
        f"ister topic describe events{where}",
    ]
    lines = ["", f"  {paint('bold', 'Ister is ready.')} {paint('dim', 'Ctrl-C stops it.')}", ""]
    lines += pairs(facts, paint)
    lines += ["", f"  {paint('dim', 'In another terminal, try:')}", *(f"    {line}" for line in tries), ""]
    return "\n".join(lines)
