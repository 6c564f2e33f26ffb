"""What may be said with options, without Spark: names, values, and how a wrong one is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ister.errors import ConfigError, IsterError
from ister.spark.options import (
    ReadOptions,
    parse_include_headers,
    parse_stream_options,
    parse_table_options,
    parse_write_options,
)
from ister.spark.source.places import Moment


def parse_read_options(options: dict[str, str]) -> ReadOptions:
    return parse_table_options(options).read


def read_error(**options: str) -> IsterError:
    with pytest.raises(IsterError) as caught:
        parse_table_options({"subscribe": "orders", **options})
    return caught.value


def stream_error(**options: str) -> IsterError:
    with pytest.raises(IsterError) as caught:
        parse_stream_options({"subscribe": "orders", **options})
    return caught.value


def test_names_are_recognised_in_any_case_and_topics_by_their_full_name() -> None:
    options = parse_table_options({"SUBSCRIBE": "orders, shop/orders,orders", "INCLUDEHEADERS": "True"})
    assert options.read.subscription.topics == ("default/orders", "shop/orders")
    assert options.read.include_headers
    assert options.read.fail_on_data_loss
    assert (options.read.start.everywhere, options.end.everywhere) == ("earliest", "latest")


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


def test_options_that_tune_kafkas_consumer_pass_and_are_named_but_not_in_a_write() -> None:
    given = {"subscribe": "t", "kafkaconsumer.polltimeoutms": "1", "fetchoffset.numretries": "3"}
    assert parse_read_options(given).ignored == ("fetchoffset.numretries", "kafkaconsumer.polltimeoutms")
    with pytest.raises(ConfigError, match="fetchoffset"):
        parse_write_options({"fetchoffset.numretries": "3"})


def test_a_group_prefix_names_a_stream_and_means_nothing_to_a_table() -> None:
    assert parse_stream_options({"subscribe": "t", "groupidprefix": "night"}).name == "night"
    assert parse_read_options({"subscribe": "t", "groupidprefix": "night"}).ignored == ("groupidprefix",)


def test_offsets_by_topic_are_kafkas_json_with_its_two_negative_numbers() -> None:
    options = parse_table_options(
        {
            "assign": '{"a": [0], "ns/b": [0]}',
            "startingoffsets": '{"a": {"0": 7}, "ns/b": {"0": -2}}',
            "endingoffsets": '{"/default/a": {"0": -1}, "ns/b": {"0": 30}}',
        }
    )
    assert options.read.start.by_topic == {"default/a": 7, "ns/b": "earliest"}
    assert options.end.by_topic == {"default/a": "latest", "ns/b": 30}


BY_TOPIC = '{"a": {"0": 1700000000123}}'


def test_a_time_goes_before_a_time_for_each_topic_and_that_before_an_offset() -> None:
    given = {"subscribe": "a", "startingoffsets": "earliest"}
    assert parse_read_options(given).start.of("default/a") == "earliest"
    given["startingoffsetsbytimestamp"] = BY_TOPIC
    assert parse_read_options(given).start.of("default/a") == Moment(1_700_000_000_123_000, True)
    given["startingtimestamp"] = "5"
    assert parse_read_options(given).start.of("default/a") == Moment(5000, True)


def test_an_end_by_time_need_not_be_there_and_a_start_need_not_if_that_is_said() -> None:
    ending = parse_table_options({"subscribe": "a", "endingoffsetsbytimestamp": BY_TOPIC}).end
    assert ending.of("default/a") == Moment(1_700_000_000_123_000)
    given = {"subscribe": "a", "startingtimestamp": "5", "startingoffsetsbytimestampstrategy": "latest"}
    assert parse_read_options(given).start.of("default/a") == Moment(5000)


def test_a_stream_begins_at_the_end_and_a_table_at_the_beginning() -> None:
    assert parse_stream_options({"subscribe": "a"}).read.start.everywhere == "latest"
    assert parse_table_options({"subscribe": "a"}).read.start.everywhere == "earliest"
    by_topic = parse_stream_options({"subscribe": "a", "startingoffsets": '{"a": {"0": -1}}'})
    assert by_topic.read.start.by_topic == {"default/a": "latest"}


@pytest.mark.parametrize("name", ["endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"])
def test_an_end_is_an_error_in_a_stream(name: str) -> None:
    assert "is for a table (read), and this is a stream" in stream_error(**{name: "latest"}).message


@pytest.mark.parametrize(
    "name", ["maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "maxbytespertrigger"]
)
def test_a_limit_of_triggers_is_an_error_in_a_table(name: str) -> None:
    assert "is for a stream (readStream), and this is a table" in read_error(**{name: "5"}).message


def test_limits_of_triggers_have_units_and_kafkas_defaults() -> None:
    assert parse_stream_options({"subscribe": "a"}).limits.max_delay_s == 15 * 60
    given = {"maxoffsetspertrigger": "7", "minoffsetspertrigger": "5", "maxtriggerdelay": "10s"}
    limits = parse_stream_options({"subscribe": "a", "maxbytespertrigger": "2m", **given}).limits
    assert (limits.max_offsets, limits.min_offsets, limits.max_delay_s) == (7, 5, 10.0)
    assert limits.max_bytes == 2 * 1024 * 1024
    error = stream_error(maxoffsetspertrigger="5", minoffsetspertrigger="7")
    assert "minOffsetsPerTrigger is 7, maxOffsetsPerTrigger 5" in error.message
    assert "which is not a duration" in stream_error(maxtriggerdelay="soon").message


def test_columns_are_known_before_anybody_knows_whether_it_is_a_stream() -> None:
    given = {"subscribe": "a", "includeheaders": "true", "endingoffsets": "latest", "maxtriggerdelay": "1s"}
    assert parse_include_headers(given)
    with pytest.raises(ConfigError, match="did you mean includeHeaders"):
        parse_include_headers({"includeheader": "true"})


def test_a_pattern_is_for_whole_names_short_or_full_and_never_for_system_topics() -> None:
    existing = ["_spark/orders", "default/orders-1", "default/reorders", "shop/orders"]

    def matching(pattern: str) -> tuple[str, ...]:
        given = {"subscribepattern": pattern}
        return parse_table_options(given).read.subscription.among(existing)

    assert matching("orders.*") == ("default/orders-1",)
    assert matching("shop/.*") == ("shop/orders",)
    assert matching(".*orders.*") == ("default/orders-1", "default/reorders", "shop/orders")
    assert matching("_spark/.*") == ()


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingoffsetsbytimestamp", '{"orders": {"0": -1}}'),
        ("startingoffsetsbytimestamp", '{"other": {"0": 5}}'),
        ("startingoffsetsbytimestampstrategy", "earliest"),
        ("subscribepattern", "a.*"),
        ("maxoffsetspertrigger", "0"),
        ("maxbytespertrigger", "many"),
        ("maxtriggerdelay", "-1s"),
    ],
)
def test_a_wrong_value_of_a_stream_is_an_error_that_shows_it(name: str, value: str) -> None:
    error = stream_error(**{name: value})
    assert isinstance(error, ConfigError)
    assert error.hint


@pytest.mark.parametrize(
    "given", [{}, {"subscribepattern": "("}, {"subscribe": " , "}, {"assign": '{"a": [1]}'}, {"assign": "a"}]
)
def test_a_table_needs_at_least_one_topic_of_one_line(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_read_options(given)


KAFKAS_READ = {
    "subscribe": "t",
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"t": {"0": 1}}',
    "startingOffsets": "earliest",
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "kafkaConsumer.pollTimeoutMs": "512",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "minPartitions": "4",
    "maxRecordsPerPartition": "1000",
    "groupIdPrefix": "night",
    "kafka.group.id": "mine",
    "includeHeaders": "true",
    "kafka.bootstrap.servers": "one:9091",
}
KAFKAS_TABLE = {
    "endingTimestamp": "2",
    "endingOffsetsByTimestamp": '{"t": {"0": 2}}',
    "endingOffsets": "latest",
}
KAFKAS_STREAM = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "15m"}
KAFKAS_WRITE = {"kafka.bootstrap.servers": "one:9091", "topic": "t", "includeHeaders": "true"}


def test_every_option_of_kafkas_connector_is_taken_by_its_name() -> None:
    """As its manual lists them, real-time mode apart; each by itself has the effect that its name says."""
    for way in ({"subscribe": "t"}, {"subscribePattern": "t"}, {"assign": '{"t": [0]}'}):
        read = {**KAFKAS_READ, **way}
        read = {name: value for name, value in read.items() if name != "subscribe" or "subscribe" in way}
        table = parse_table_options(lowered({**read, **KAFKAS_TABLE}))
        stream = parse_stream_options(lowered({**read, **KAFKAS_STREAM}))
        for options in (table.read, stream.read):
            assert options.bootstrap == "one:9091" and options.include_headers
            assert not options.fail_on_data_loss
            assert (options.min_partitions, options.max_records_per_partition) == (4, 1000)
            assert options.start.option == "startingTimestamp"
        assert table.end.option == "endingTimestamp"
        limits = stream.limits
        assert (limits.max_offsets, limits.min_offsets, limits.max_delay_s) == (10, 5, 900.0)
        assert stream.name == "night"
    assert parse_write_options(lowered(KAFKAS_WRITE)).topic == "default/t"


def test_the_guide_names_every_option() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text()
    ours = {"maxBytesPerTrigger", "delivery", "txnAppId", "txnVersion", "bootstrap.servers"}
    tunes = {
        name for name in KAFKAS_READ if name.startswith(("kafkaConsumer.", "fetchOffset.", "kafka.group"))
    }
    known = {*KAFKAS_READ, *KAFKAS_TABLE, *KAFKAS_STREAM, *KAFKAS_WRITE, *ours, "subscribePattern", "assign"}
    assert [name for name in sorted(known - tunes) if name not in guide] == []


def lowered(options: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
