"""Danube's holes (D..) where moves and a history could open them: what it did is in each docstring.

Each test runs a scenario of `history_plants`; the last one runs each of them again with Danube's mistake, or
one like it, put in, and must see it.
"""

from __future__ import annotations

import pytest

from tests.history.test_planted_bugs import releasing_before_publishing
from tests.holes import cluster_plants, replica_plants
from tests.holes import history_plants as plants
from tests.holes.history_plants import Plant, Story
from tests.planting import shows


def test_d2_what_earlier_starts_wrote_is_exported_and_what_follows_too() -> None:
    """D2: after a restart the export skipped the file, whose offsets began at 0, and the seal deleted it."""
    plants.restarts_before_the_export()


def test_d3_what_is_torn_behind_a_sealed_end_is_not_in_the_history() -> None:
    """D3: a torn tail was never cut, and whatever read past it was misled."""
    plants.a_torn_tail_behind_a_sealed_end()


def test_d4_d6_each_object_begins_where_the_one_before_ends_and_has_its_frames_in_order() -> None:
    """D4, D6: frames landed in the next file, under a wrong first offset, or in another order."""
    plants.producers_race_rollovers()


def test_d5_a_write_that_failed_leaves_nothing_in_the_history() -> None:
    """D5: write errors were only warned about; a part that was written stayed in the middle of a file."""
    plants.writes_fail_now_and_then()


def test_d7_copies_go_under_a_writer_and_readers_and_no_file_is_missed() -> None:
    """D7: deleter and writer fought over a checkpoint, and readers hit missing files."""
    plants.copies_go_while_they_are_read()


def test_d8_after_a_move_what_is_neither_cached_nor_exported_is_never_skipped() -> None:
    """D8: after a move, records neither in the cache nor exported were skipped in silence."""
    plants.records_that_are_nowhere_but_at_the_old_leader()


def test_d9_appends_in_flight_at_a_move_keep_their_offsets_in_the_history_too() -> None:
    """D9: the last offset was captured before the writer stopped; what was in flight lost its offset."""
    plants.producers_race_moves()


def test_d9_an_empty_topic_that_is_moved_goes_on_at_0_and_exports_nothing() -> None:
    """D9: an empty topic sealed as offset 0, and resumed at 1."""
    plants.an_empty_topic_moves_about()


def test_d10_neither_an_old_seal_nor_a_silent_metadata_outranks_the_new_leaders_log() -> None:
    """D10: a stale sealed marker outranked a newer log; an error of the metadata began at 0."""
    plants.a_start_after_a_move()


def test_d14_whatever_the_reason_of_a_move_nothing_goes_that_is_nowhere_else() -> None:
    """D14: a rebalance deleted the data: only "unload" was graceful."""
    plants.a_move_for_each_reason()


def test_d15_a_live_leader_that_is_taken_for_dead_exports_and_deletes_nothing_that_it_should_not() -> None:
    """D15: a live broker whose registration had expired deleted its data; two owners wrote the same keys."""
    plants.a_live_leader_is_taken_for_dead()


def test_d16_a_move_whose_source_is_gone_before_its_seal_ends_and_its_segment_is_exported() -> None:
    """D16: a topic was stranded when the source died before its seal was marked ready."""
    plants.the_source_of_a_move_is_gone_for_good()


def test_d20_what_a_dead_broker_had_not_exported_is_exported_by_others_and_no_offset_is_used_again() -> None:
    """D20: a dead broker's unexported data stayed on its disk, and its offsets were given out again."""
    plants.a_leader_is_gone_before_its_export()


SEEN: list[tuple[str, Plant, Story]] = [
    ("d2", plants.an_export_skips_what_it_did_not_see_sealed, plants.restarts_before_the_export),
    ("d3", plants.a_log_is_exported_to_its_last_byte, plants.a_torn_tail_behind_a_sealed_end),
    ("d4", cluster_plants.in_flight_appends_are_not_waited_for, plants.producers_race_rollovers),
    ("d5", plants.what_could_not_be_written_counts, plants.writes_fail_now_and_then),
    ("d6", plants.frames_of_one_write_change_places, plants.producers_race_rollovers),
    ("d7", releasing_before_publishing, plants.copies_go_while_they_are_read),
    (
        "d8",
        plants.who_does_not_have_it_answers_with_what_it_has,
        plants.records_that_are_nowhere_but_at_the_old_leader,
    ),
    ("d9", cluster_plants.in_flight_appends_are_not_waited_for, plants.producers_race_moves),
    ("d9-empty", plants.an_empty_topic_ends_behind_its_first_offset, plants.an_empty_topic_moves_about),
    ("d10", plants.the_seal_before_outranks_the_log, plants.a_start_after_a_move),
    ("d14", plants.only_an_operators_move_keeps_the_records, plants.a_move_for_each_reason),
    ("d15", replica_plants.a_leader_needs_nobody, plants.a_live_leader_is_taken_for_dead),
    (
        "d15-clears",
        replica_plants.who_cannot_lead_any_more_deletes_what_it_has,
        plants.a_live_leader_is_taken_for_dead,
    ),
    ("d16", plants.nobody_goes_on_with_a_move, plants.the_source_of_a_move_is_gone_for_good),
    ("d20", plants.only_who_led_a_segment_exports_it, plants.a_leader_is_gone_before_its_export),
]


@pytest.mark.parametrize(("plant", "story"), [row[1:] for row in SEEN], ids=[row[0] for row in SEEN])
def test_the_mistake_is_put_in_and_the_check_can_see_it(plant: Plant, story: Story) -> None:
    with plant():
        assert shows(story)
