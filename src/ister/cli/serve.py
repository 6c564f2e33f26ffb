"""`ister serve`: a broker in this process, until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ister.cli.common import output_option, parse_pairs, pass_terminal
from ister.cli.terminal import DEFAULT_BOOTSTRAP, Terminal
from ister.errors import ConfigError

if TYPE_CHECKING:
    from ister.broker.node.process import BrokerInfo
    from ister.config import BrokerConfig, ConfigFile


@click.command()
@click.option("--data-dir", metavar="DIRECTORY", help="Where the log is kept.  [default: ister-data]")
@click.option("--client-port", metavar="PORT", help="The port for clients; 0 takes any.  [default: 9091]")
@click.option("--client-host", metavar="HOST", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--client-advertise-host", metavar="HOST", help="The host that clients are told to use.")
@click.option("--peer-port", metavar="PORT", help="The port for other brokers; 0 takes any.  [default: none]")
@click.option("--peer-host", metavar="HOST", help="The address to listen on for them.  [default: 127.0.0.1]")
@click.option("--peer-advertise-host", metavar="HOST", help="The host that other brokers are told to use.")
@click.option(
    "--bootstrap-cluster", is_flag=True, help="Make a new cluster, of this broker, in an empty directory."
)
@click.option(
    "--join",
    metavar="HOST:PORT",
    multiple=True,
    help="Join the cluster that has this peer address, with an empty directory.",
)
@click.option(
    "--replace-disk",
    is_flag=True,
    help="Join on an empty directory even if only the old one has some records: it is gone for good.",
)
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
@click.option("--raft-port", hidden=True)
@click.option("--raft-host", hidden=True)
@click.option("--raft-advertise-host", hidden=True)
@click.option("--initial-peer", multiple=True, hidden=True)
@output_option
@pass_terminal
def serve(
    terminal: Terminal, /, config_path: str | None, others: tuple[str, ...], **flags: str | bool | tuple[str]
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which let it finish what it has accepted.

    Settings come from the command line, else from the environment (ISTER_DATA_DIR, ...), else from
    --config, else from the defaults. With no setting at all it is a durable broker for this machine.

    With --peer-port it is a node of a cluster. On an empty directory the first one makes the cluster
    (--bootstrap-cluster) and the others join it (--join), each with a --node-id of its own; with neither, it
    waits to be added by `ister node add`. Once it is in, it finds its way back without either.

    With --output json, one object {"event": "ready", ...} on the standard output says that it takes
    connections, and where. A node that waits to be added says {"event": "waiting", ...} before that.

    \b
    Examples:
      ister serve
      ister serve --data-dir /var/lib/ister --client-host 0.0.0.0
      ister serve --config ister.toml --log-level info,ister.wal=debug
      ister serve --set hot_tail_bytes=128MiB --set fsync=interval
      ister serve --client-port 0 --admin-port -1 --output json
      ister serve --node-id 1 --peer-port 6001 --bootstrap-cluster --data-dir node-1
      ister serve --node-id 2 --peer-port 6002 --client-port 9092 --admin-port 9191 \\
          --join 127.0.0.1:6001 --data-dir node-2
    """
    config = read_config(terminal, config_path, others, flags)
    start_logs(terminal, config)
    from ister.broker.node.process import run

    if waits_to_be_added(config):
        announce_waiting(terminal, config)
    run(config, on_ready=lambda info: announce(terminal, config, info))


def read_config(
    terminal: Terminal, path: str | None, others: tuple[str, ...], flags: Mapping[str, Any]
) -> BrokerConfig:
    from ister.config import ALIASES, load_config

    named: dict[str, object] = {}
    given_by: dict[str, str] = {}
    options = [
        (name, f"--{name.replace('_', '-')}", value)
        for name, value in flags.items()
        if value not in (None, False, ())
    ]
    settings = [(name, f"--set {name}", value) for name, value in parse_pairs(others, "--set").items()]
    for name, option, value in (*options, *settings):
        field = name.replace("-", "_")
        field = ALIASES.get(field, field)
        if field in named:
            raise click.UsageError(f"{field} is given twice: by {given_by[field]} and by {option}")
        named[field] = ",".join(value) if isinstance(value, tuple) else value
        given_by[field] = option
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


def waits_to_be_added(config: BrokerConfig) -> bool:
    """Whether this is a node that has no cluster yet, makes none and asks none to let it in."""
    import json

    if config.peer_port < 0 or config.bootstrap_cluster or config.join:
        return False
    try:
        identity = json.loads((Path(config.data_dir) / "ister.json").read_bytes())
        return not identity["cluster_id"]
    except FileNotFoundError:
        return True
    except (OSError, ValueError, LookupError, TypeError):
        return False  # the broker will say what is wrong with the directory


def announce_waiting(terminal: Terminal, config: BrokerConfig) -> None:
    """Before it starts: it will not be ready until somebody adds it, and who waits should know why."""
    host = config.peer_advertise_host or config.peer_host
    port = config.peer_advertise_port or config.peer_port
    if terminal.wants_json:
        entry = {"event": "waiting", "node_id": config.node_id, "peer_host": host, "peer_port": port}
        terminal.write_objects([entry])
    elif terminal.is_terminal:
        paint = terminal.paint
        lines = [
            "",
            f"  {paint('bold', f'Node {config.node_id} waits to be added to a cluster.')} "
            f"{paint('dim', 'Ctrl-C stops it.')}",
            "",
            "  It has no cluster yet. Tell a node of one, at its client address:",
            f"    {terminal.own_command} node add {host}:{port or 'PORT'} --bootstrap HOST:PORT",
            "  Or start it again with --join, or with --bootstrap-cluster to make a new cluster.",
            "",
        ]
        terminal.say("\n".join(lines))


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
    peer_port = getattr(info, "peer_port", -1)
    facts = [
        ("clients", paint("green", address)),
        ("metrics", metrics),
        ("data", str(info.data_dir)),
        ("cluster", f"{info.cluster_id}, node {info.node_id}"),
        ("process", str(os.getpid())),
    ]
    ister = terminal.own_command
    where = "" if address == DEFAULT_BOOTSTRAP else f" --bootstrap {address}"
    tries = [
        f"{ister} put events 'hello'{where}",
        f"{ister} tail events --from start{where}",
        f"{ister} topic describe events{where}",
    ]
    if peer_port > 0:
        peers = f"{config.peer_advertise_host or config.peer_host}:{config.peer_advertise_port or peer_port}"
        facts.insert(1, ("peers", paint("green", peers)))
        tries.append(f"{ister} cluster status{where}")
        if config.bootstrap_cluster:
            tries.append(f"{ister} {join_example(info, peers, peer_port)}")
    lines = ["", f"  {paint('bold', 'Ister is ready.')} {paint('dim', 'Ctrl-C stops it.')}", ""]
    lines += pairs(facts, paint)
    lines += ["", f"  {paint('dim', 'In another terminal, try:')}", *(f"    {line}" for line in tries), ""]
    return "\n".join(lines)


def join_example(info: BrokerInfo, peers: str, peer_port: int) -> str:
    """What to tell `ister` for one more node on this machine, beside this one."""
    node_id = info.node_id + 1
    admin_port = info.admin_port + 1 if info.admin_port > 0 else -1
    directory = Path(info.data_dir).with_name(f"node-{node_id}")
    return (
        f"serve --node-id {node_id} --join {peers} --peer-port {peer_port + 1} "
        f"--client-port {info.client_port + 1} --admin-port {admin_port} --data-dir {directory}"
    )
