"""The broker's configuration: the order of its sources, and errors that say what to do."""

from __future__ import annotations

import pytest

from ister.config import BrokerConfig, ConfigFile, environment_notices, load_config, specs
from ister.errors import ConfigError
from ister.protocol.messages import TopicSettings


def from_file(text: str) -> BrokerConfig:
    return load_config(ConfigFile("ister.toml", text), {}, {})


def test_each_source_overrides_the_one_before() -> None:
    file = ConfigFile("ister.toml", "node_id = 2\nmax_connections = 2\nmax_topics = 2")
    config = load_config(file, {"ISTER_MAX_CONNECTIONS": "3", "ISTER_MAX_TOPICS": "3"}, {"max_topics": "4"})
    assert (config.node_id, config.max_connections, config.max_topics) == (2, 3, 4)
    assert config.client_port == 9091


def test_every_default_is_allowed_and_every_field_says_what_it_is_for() -> None:
    assert load_config(None, {}, {}) == BrokerConfig()
    assert set(specs()) == set(BrokerConfig.__struct_fields__)
    assert [name for name, spec in specs().items() if not spec.about.endswith(".")] == []


def test_the_defaults_of_topics_are_those_of_the_protocol() -> None:
    assert BrokerConfig().topic_defaults() == TopicSettings()


def test_the_broker_s_message_limit_bounds_the_topics_own() -> None:
    config = BrokerConfig(max_message_bytes=1 << 20, topic_max_message_bytes=1 << 24)
    assert config.topic_defaults().max_message_bytes == 1 << 20


def test_sizes_durations_and_switches_are_read_from_text() -> None:
    environ = {"ISTER_HOT_TAIL_BYTES": "1GiB", "ISTER_MAX_HELD_MS": "2s", "ISTER_AUTO_CREATE_TOPICS": "no"}
    config = load_config(None, environ, {})
    assert (config.hot_tail_bytes, config.max_held_ms, config.auto_create_topics) == (1 << 30, 2000, False)


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert load_config(None, {"ISTER_NODE_ID": "7"}, {"node_id": None}).node_id == 7


def test_an_unknown_key_in_the_file_is_named_with_the_file_and_the_nearest_key() -> None:
    with pytest.raises(ConfigError) as caught:
        from_file("client_prot = 1")
    assert caught.value.message == (
        "there is no setting 'client_prot' (from the file ister.toml); did you mean client_port?"
    )


def test_an_unknown_variable_is_named_with_the_nearest_setting() -> None:
    with pytest.raises(ConfigError, match=r"ISTER_DATADIR\); did you mean ISTER_DATA_DIR\?"):
        load_config(None, {"ISTER_DATADIR": "x", "PATH": "/bin"}, {})


def test_a_name_that_people_bring_along_is_suggested_as_they_would_write_it() -> None:
    with pytest.raises(ConfigError, match=r"did you mean ISTER_MAX_SEGMENT_ENTRIES\?"):
        load_config(None, {"ISTER_MAX_SEGMENT_ENTRIE": "10"}, {})


def test_variables_of_the_command_line_and_of_strangers_are_left_alone() -> None:
    assert load_config(None, {"ISTER_BOOTSTRAP": "b:1", "MYISTER_X": "1"}, {}) == BrokerConfig()


def test_a_table_in_the_file_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="there is no setting 'broker'"):
        from_file("[broker]\nclient_port = 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client_port = 70000", "client_port = 70000 (from the file ister.toml) is out of range: 0 to 65535"),
        ("client_port = '9k'", "client_port = '9k' (from the file ister.toml) is not a whole number"),
        ("admin_port = -2", "is out of range: -1 to 65535"),
        ("data_dir = ''", "data_dir = '' (from the file ister.toml) is empty"),
        ("data_dir = 5", "is a number, not text"),
        ("log_format = 'jsn'", "is not one of: text, json; did you mean json?"),
        ("log_level = 'info,ister.wal=debgu'", "has no level 'debgu'; did you mean debug?"),
        ("max_held_ms = '5 fortnights'", "is not a duration such as 250ms, 10s, 5m, 2h or 7d"),
        ("auto_create_topics = 'perhaps'", "is not true or false"),
        ("client_port = ", "ister.toml is not TOML: "),
    ],
)
def test_a_wrong_value_is_named_with_its_field_its_place_and_its_range(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_file(text)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_config_made_in_code_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="segment_bytes = 1 is out of range"):
        BrokerConfig(segment_bytes=1)
    with pytest.raises(ConfigError, match="segment_bytes = '1MiB' is text"):
        BrokerConfig(segment_bytes="1MiB")  # type: ignore[arg-type]


def test_the_name_that_people_bring_along_means_segment_records() -> None:
    assert load_config(None, {"ISTER_MAX_SEGMENT_ENTRIES": "500"}, {}).segment_records == 500


def test_both_names_of_one_setting_are_refused_rather_than_one_of_them_ignored() -> None:
    environ = {"ISTER_MAX_SEGMENT_ENTRIES": "5", "ISTER_SEGMENT_RECORDS": "6"}
    with pytest.raises(ConfigError, match="both set"):
        load_config(None, environ, {})


def test_a_variable_without_effect_is_accepted_and_mentioned() -> None:
    environ = {"ISTER_DISABLE_IO_URING": "1"}
    assert load_config(None, environ, {}) == BrokerConfig()
    assert environment_notices(environ) == [
        "ISTER_DISABLE_IO_URING has no effect: there is no io_uring in Ister, so there is none to disable"
    ]
    assert environment_notices({}) == []
