"""What `ister dev` runs: how many nodes, on which ports, in which directories.

`dev.json` in the cluster's directory keeps the ports, because a cluster that was stopped as a whole finds
itself again by its peer addresses: with other ones no node would find another. It is written before the first
node starts, so that a second try after any failure is the same cluster.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ister.errors import AddressInUse, ConfigError

HOST: Final = "127.0.0.1"
FILE: Final = "dev.json"
MAX_NODES: Final = 7
"""As many as vote; a cluster that is larger has learners too, and is not what one tries on one machine."""
DEFAULT_NODES: Final = 3
FIRST_PORTS: Final = {"client_port": 9091, "peer_port": 6001, "admin_port": 9190}
OFF: Final = -1

_EACH_HAS_ITS_OWN: Final = frozenset(
    {
        "data_dir", "node_id", "bootstrap_cluster", "join", "replace_disk", "initial_peer", "log_file",
        "admin_host", "admin_port",
        "client_host", "client_port", "client_advertise_host", "client_advertise_port",
        "peer_host", "peer_port", "peer_advertise_host", "peer_advertise_port",
        "raft_host", "raft_port", "raft_advertise_host",
    }
)  # fmt: skip


class DevNode(NamedTuple):
    """One node of it: what `ister serve` is told."""

    node_id: int
    client_port: int
    peer_port: int
    admin_port: int

    @property
    def client(self) -> str:
        return f"{HOST}:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"{HOST}:{self.peer_port}"

    def options(self, directory: Path, first: DevNode) -> list[str]:
        place = ["--bootstrap-cluster"] if self.node_id == first.node_id else ["--join", first.peer]
        return [
            *("--node-id", str(self.node_id), *place),
            *("--peer-port", str(self.peer_port), "--client-port", str(self.client_port)),
            *("--admin-port", str(self.admin_port), "--data-dir", str(directory / f"node-{self.node_id}")),
        ]


def plan_nodes(directory: Path, wanted: int | None, first_ports: Mapping[str, int | None]) -> list[DevNode]:
    """The nodes of a new cluster in `directory`, or of the one that is there, which may get more of them."""
    kept = _read(directory)
    count = wanted or len(kept) or DEFAULT_NODES
    if count < len(kept):
        raise ConfigError(
            f"the cluster in {directory} has {len(kept)} nodes, and {count} were asked for",
            hint=f"Give --nodes {len(kept)} or leave it out; `ister node remove` takes nodes out.",
        )
    peer_port = first_ports.get("peer_port")
    if kept and peer_port not in (None, 0, kept[0].peer_port):
        raise ConfigError(
            f"the cluster in {directory} has its peers from port {kept[0].peer_port}, not {peer_port}",
            hint="Leave --peer-port out: its nodes know each other by the ports that they had.",
        )
    taken = {getattr(node, name) for node in kept for name in FIRST_PORTS}
    columns = {
        name: list(_ports(count, name, first_ports.get(name), [getattr(node, name) for node in kept], taken))
        for name in FIRST_PORTS
    }
    nodes = [
        DevNode(place + 1, *(columns[name][place] for name in ("client_port", "peer_port", "admin_port")))
        for place in range(count)
    ]
    _check_ports(nodes)
    return nodes


def _ports(count: int, name: str, first: int | None, kept: list[int], taken: set[int]) -> Iterator[int]:
    """One for each node: those that it had, else counted from the first, else any that is free, and that no
    node of the cluster has, running or not."""
    if first is None or name == "peer_port":
        yield from kept
        start = len(kept)
    else:
        start = 0
    if first is None:
        first = kept[0] if kept else FIRST_PORTS[name]
    for place in range(start, count):
        yield OFF if first == OFF else first + place if first else _free_port(taken)


def _free_port(taken: set[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            taken.add(port)
            return port


def _check_ports(nodes: list[DevNode]) -> None:
    """Before anything is written: one of them in use is by far the most likely failure."""
    used: set[int] = set()
    for node in nodes:
        for name in FIRST_PORTS:
            port = getattr(node, name)
            if port == OFF:
                continue
            if port > 65_535 or port in used:
                raise ConfigError(
                    f"{name} {port} of node {node.node_id} "
                    + ("is over 65535" if port > 65_535 else "is needed twice"),
                    hint="Choose ranges that do not meet with --client-port, --peer-port and --admin-port.",
                )
            used.add(port)
            _check_free(name, port)


def _check_free(name: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise AddressInUse(
                f"{HOST}:{port} cannot be used: {error.strerror}",
                hint=f"Is another cluster running here? Stop what listens there, or choose another port "
                f"with --{name.replace('_', '-')}.",
            ) from error


def keep_plan(directory: Path, nodes: list[DevNode]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f"{FILE}.new"
    new.write_text(json.dumps([node._asdict() for node in nodes], indent=1) + "\n", encoding="utf-8")
    new.replace(directory / FILE)


def _read(directory: Path) -> list[DevNode]:
    path = directory / FILE
    try:
        return [DevNode(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}",
            hint="It has the ports of the cluster's nodes. Give another --data-dir, or mend the file.",
        ) from error


def settings_of_nodes(
    settings: Mapping[str, str], log_level: str | None, environ: Mapping[str, str]
) -> list[str]:
    """As options of `ister serve`; a wrong one is refused here, before the first node starts."""
    from ister.config import load_config

    named = {name.replace("-", "_"): value for name, value in settings.items()}
    own = sorted(_EACH_HAS_ITS_OWN.intersection(named))
    if own:
        raise ConfigError(
            f"{own[0]} cannot be set for all nodes: each has its own",
            hint="`ister dev --help` has what can be chosen; for more, start the nodes with `ister serve`.",
        )
    if log_level is not None:
        named["log_level"] = log_level
    load_config(None, environ, named)
    return [
        part
        for name, value in {"join_timeout_ms": "60s", **named}.items()
        for part in ("--set", f"{name}={value}")
    ]


def environment_of_nodes(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what one node cannot share with another."""
    from ister.config import PREFIX

    own = {PREFIX + name.upper() for name in _EACH_HAS_ITS_OWN}
    return {name: value for name, value in environ.items() if name not in own}
