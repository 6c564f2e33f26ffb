"""Addresses as people write them: `host:port`, `[::1]:port`, several with commas."""

from __future__ import annotations

from typing import Final, NamedTuple

from ister.errors import ConfigError

DEFAULT_PEER_PORT: Final = 6001


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = DEFAULT_PEER_PORT) -> Address:
    """One address; a port that is not given is the default one."""
    text = text.strip()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if closed else "?"
    elif text.count(":") > 1:
        raise ConfigError(f"{text!r} is no address", hint="Write an IPv6 address as [host]:port.")
    else:
        host, _, port = text.partition(":")
    number = int(port) if port.isdecimal() else -1 if port else default_port
    if not host or not 0 < number < 65536:
        raise ConfigError(
            f"{text!r} is no address", hint=f"Give host:port, for example 127.0.0.1:{default_port}."
        )
    return Address(host, number)


def parse_addresses(text: str, default_port: int = DEFAULT_PEER_PORT) -> list[Address]:
    """`host:port[,host:port...]`; empty text is none."""
    return [parse_address(part, default_port) for part in text.split(",") if part.strip()]
