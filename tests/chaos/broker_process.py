"""`ister serve` as a child process: started, killed, stopped, and started again on the same directory."""

from __future__ import annotations

from pathlib import Path

from bench.cluster.nodes import NodeProcess, free_ports


class BrokerProcess(NodeProcess):
    """A broker alone."""

    def __init__(self, directory: Path, **settings: object) -> None:
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        super().__init__(directory, free_ports(1)[0], options)
