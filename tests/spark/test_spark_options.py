"""What may be said with options, without Spark: names, values, and how a wrong one is answered."""

from __future__ import annotations

import pytest

from ister.errors import ConfigError, IsterError
from ister.spark.options import Moment, parse_read_options, parse_write_options


def read_error(**options: str) -> IsterError:
    with pytest.raises(IsterError) as caught:
        parse_read_options({"subscribe": "orders", **options})
    return caught.value


def test_names_are_recognised_in_any_case_and_topics_by_their_full_name() -> None:
    options = parse_read_options({"SUBSCRIBE": "orders, shop/orders,orders", "INCLUDEHEADERS": "True"})
    assert options.topics == ("default/orders", "shop/orders")
    assert options.include_headers
    assert options.fail_on_data_loss
    assert options.start == {"default/orders": "earliest", "shop/orders": "earliest"}
    assert options.end == {"default/orders": "latest", "shop/orders": "latest"}


@pytest.mark.parametrize("name", ["bootstrap.servers", "kafka.bootstrap.servers"])
def test_both_names_of_the_bootstrap_servers_work(name: str) -> None:
    assert parse_read_options({"subscribe": "t", name: "one:9091,two:9091"}).bootstrap == "one:9091,two:9091"
    assert parse_write_options({name: "one:9091"}).bootstrap == "one:9091"


def test_two_different_bootstrap_servers_are_refused() -> None:
    error = read_error(**{"bootstrap.servers": "one:1", "kafka.bootstrap.servers": "two:2"})
    assert "one:1" in error.message and "two:2" in error.message


def test_an_unknown_option_is_an_error_with_the_nearest_known_one() -> None:
    error = read_error(startingofsets="earliest")
    assert isinstance(error, ConfigError)
    assert "'startingofsets'; did you mean startingOffsets?" in error.message
    assert "subscribe" in error.hint


def test_a_read_option_is_unknown_to_a_write() -> None:
    with pytest.raises(ConfigError, match="startingoffsets"):
        parse_write_options({"topic": "t", "startingoffsets": "earliest"})


def test_sparks_own_options_pass() -> None:
    assert parse_read_options({"subscribe": "t", "path": "x", "queryname": "q"}).ignored == ()


def test_other_options_of_the_kafka_client_pass_and_are_named() -> None:
    given = {"subscribe": "t", "kafka.group.id": "g", "kafka.fetch.max.bytes": "1"}
    assert parse_read_options(given).ignored == ("kafka.fetch.max.bytes", "kafka.group.id")


@pytest.mark.parametrize(
    "name", ["kafka.security.protocol", "kafka.sasl.mechanism", "kafka.ssl.key.password"]
)
def test_an_option_that_asks_for_security_is_refused_rather_than_ignored(name: str) -> None:
    assert name in read_error(**{name: "SASL_SSL"}).message


def test_an_option_of_the_kafka_connector_that_is_not_here_is_called_so() -> None:
    assert (
        "subscribePattern of the Kafka connector is not supported"
        in read_error(subscribepattern="a.*").message
    )


def test_offsets_by_topic_are_kafkas_json_with_its_two_negative_numbers() -> None:
    options = parse_read_options(
        {
            "assign": '{"a": [0], "ns/b": [0]}',
            "startingoffsets": '{"a": {"0": 7}, "ns/b": {"0": -2}}',
            "endingoffsets": '{"/default/a": {"0": -1}, "ns/b": {"0": 30}}',
        }
    )
    assert options.start == {"default/a": 7, "ns/b": "earliest"}
    assert options.end == {"default/a": "latest", "ns/b": 30}


def test_a_timestamp_goes_before_an_offset() -> None:
    options = parse_read_options(
        {"subscribe": "a", "startingtimestamp": "1700000000123", "startingoffsets": "earliest"}
    )
    assert options.start == {"default/a": Moment(1_700_000_000_123_000)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingoffsets", "latest"),
        ("startingoffsets", '{"orders": {"0": -1}}'),
        ("startingoffsets", '{"orders": {"1": 5}}'),
        ("startingoffsets", '{"orders": {"0": -3}}'),
        ("startingoffsets", '{"orders": {"0": 5}, "other": {"0": 5}}'),
        ("startingoffsets", "{}"),
        ("startingoffsets", "[1]"),
        ("startingoffsets", "first"),
        ("endingoffsets", "earliest"),
        ("startingtimestamp", "yesterday"),
        ("includeheaders", "yes"),
        ("minpartitions", "0"),
        ("maxrecordsperpartition", "-1"),
        ("assign", '{"orders": [0]}'),
        ("bootstrap.servers", "host:port"),
    ],
)
def test_a_wrong_value_is_an_error_that_shows_it(name: str, value: str) -> None:
    error = read_error(**{name: value})
    assert isinstance(error, ConfigError)
    assert error.hint


@pytest.mark.parametrize("given", [{}, {"subscribe": " , "}, {"assign": '{"a": [1]}'}, {"assign": "a"}])
def test_a_table_needs_at_least_one_topic_of_one_line(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_read_options(given)
