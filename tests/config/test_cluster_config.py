"""Settings of a cluster that contradict each other are refused, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from ister.addresses import Address, parse_address, parse_addresses
from ister.config import BrokerConfig, load_config
from ister.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        (
            {"bootstrap_cluster": True, "join": "a:1", "peer_port": 1},
            "are both given",
            "--join to the others",
        ),
        ({"bootstrap_cluster": True}, "bootstrap_cluster needs a port", "--peer-port 6001"),
        ({"join": "a:1"}, "join = 'a:1' needs a port", "--peer-port 6001"),
        ({"join": "a:x", "peer_port": 1}, "join = 'a:x': 'a:x' is no address", "host:port"),
        ({"election_min_ms": 1000}, "election_min_ms = 1000 is not below election_max_ms = 1000", "room"),
        ({"heartbeat_ms": 251}, "heartbeat_ms = 251 is more than half of election_min_ms = 500", "lower"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_contradiction_is_refused_with_its_values(settings: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(**settings)
    assert said in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"replicas": "0"}, "replicas = '0' (from the command line) is out of range: 1 to 7"),
        ({"replicas": "8"}, "is out of range: 1 to 7"),
        ({"failover_after_ms": "10ms"}, "is out of range: 50ms to 1h"),
        ({"repair_bytes_per_second": "0"}, "is out of range: 64KiB to 1TiB"),
    ],
)
def test_replication_out_of_range_is_refused_with_the_range(setting: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {}, setting)
    assert said in caught.value.message


def test_replicas_are_a_default_of_topics_and_the_scrub_can_be_turned_off() -> None:
    config = load_config(None, {"ISTER_REPLICAS": "5"}, {"scrub_bytes_per_second": "0"})
    assert config.topic_defaults().replicas == 5
    assert (config.scrub_bytes_per_second, config.repair_bytes_per_second) == (0, 32 << 20)


def test_what_is_just_allowed_is_allowed() -> None:
    BrokerConfig(peer_port=0, bootstrap_cluster=True)
    BrokerConfig(peer_port=6001, join="10.0.0.1:6001, node-2:6001,[::1]:6001")
    BrokerConfig(heartbeat_ms=250, election_min_ms=500, election_max_ms=501)


def test_the_names_that_people_bring_along_mean_the_peer_port_and_the_cluster_to_join() -> None:
    environ = {
        "ISTER_RAFT_PORT": "6002",
        "ISTER_RAFT_HOST": "0.0.0.0",
        "ISTER_RAFT_ADVERTISE_HOST": "10.0.0.2",
        "ISTER_INITIAL_PEER": "10.0.0.1:6001",
    }
    config = load_config(None, environ, {})
    assert (config.peer_port, config.peer_host, config.peer_advertise_host) == (6002, "0.0.0.0", "10.0.0.2")
    assert config.join == "10.0.0.1:6001"


def test_addresses_are_read_as_people_write_them() -> None:
    assert parse_addresses("a:1, [::1]:65535,") == [Address("a", 1), Address("::1", 65535)]
    assert parse_addresses("a,a:,[::1]") == [Address("a", 6001), Address("a", 6001), Address("::1", 6001)]
    assert [str(found) for found in parse_addresses("a:1,[::1]:2")] == ["a:1", "[::1]:2"]
    assert parse_addresses("") == []


@pytest.mark.parametrize(
    "text", ["", ":1", "a:0", "a:65536", "a:x", "a:-1", "::1", "::1:6001", "[::1", "[]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        parse_address(text)
