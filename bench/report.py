"""One run's results as tables for the README and as pictures. Nothing here measures or remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.asked import ASKED, SUBSCRIPTIONS_ASKED, Results, megabytes, milliseconds, rate, throughput
from bench.cluster.timeline import draw_timeline
from bench.plot import Bar, bar_chart
from bench.replication.picture import draw_failover
from ister.bench.figures import UNSTEADY

START: Final = "<!-- figures:start -->"
END: Final = "<!-- figures:end -->"
UNSYNCED: Final = "_unsynced"
SPARK_NAMES: Final = {
    "ister": "**Ister**",
    "ister_at_least_once": "**Ister**, delivery=at-least-once, which is what Kafka's connector promises",
    "parquet": "Parquet, zstd",
    "kafka_one": "Kafka, one partition",
    "kafka_one_split": "Kafka, one partition, minPartitions 2",
    "kafka_one_split_tuned": "Kafka, one partition, minPartitions 2, large fetches",
    "kafka_four": "Kafka, four partitions",
    "kafka_four_tuned": "Kafka, four partitions, large fetches",
    "kafka_default": "Kafka, not synced",
    "kafka_tuned": "Kafka, batch.size 128 KiB, linger.ms 5, not synced",
    "kafka_tuned_flushed": "Kafka, the same, each batch synced",
}
PEER_NAMES: Final = {"redis": "Redis Streams", "nats": "NATS JetStream", "kafka": "Kafka"}


def fill_figures(page: str, results: Results) -> str:
    """The page with everything between its two marks replaced."""
    head, start, rest = page.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page has no {START} ... {END} to fill")
    return f"{head}{START}\n{figures(results)}\n{END}{tail}"


def figures(results: Results) -> str:
    machine = results["machine"]
    lines = ["| | asked for | measured | kept |", "|---|---|---|---|"]
    lines += [
        f"| {asked.what} | {asked.bound} | {asked.show(asked.value(results))} | {asked.verdict(results)} |"
        for asked in ASKED
    ]
    lines += [
        "",
        f"One {'quick ' if results['quick'] else ''}run on {machine['cores']} cores, "
        f"{machine['memory_gb']:.0f} GB, {machine['filesystem']}, {machine['kernel']}, "
        f"Python {machine['python']}; [how it was measured](docs/bench.md).",
    ]
    tables = [*peers_table(results), "", *replicated_table(results)]
    tables += [*lead(results), *subscription_table(results), *spark_tables(results)]
    return "\n".join([*lines, "", *tables, "", *pictures()])


def pictures() -> list[str]:
    return [
        "![Records a second, in batches](docs/pictures/bench-append.svg)",
        "![A lone record](docs/pictures/bench-latency.svg)",
    ]


def peers_table(results: Results) -> list[str]:
    """One node each."""
    own = results["ister"]
    parts = [own["append"], own.get("append_1k"), own["latency"]]
    lines = [
        *table_head("the same records, one node"),
        peer_row("**Ister**", parts, "synced, then acknowledged"),
    ]
    for name, title in PEER_NAMES.items():
        lines += peer_rows(title, results["peers"].get(name, {"status": "not asked for"}))
    return lines


def replicated_table(results: Results) -> list[str]:
    """Three nodes each, every record on three disks; a topic of each node, or a partition of each broker."""
    lines = table_head("three nodes, three replicas")
    own = results["ister"]
    if "replicated" in own:
        parts = [own[name] for name in ("replicated", "replicated_1k", "replicated_latency")]
        lines.append(peer_row("**Ister**", parts, "synced by two of three, then acknowledged"))
    peer = results["peers"].get("kafka_replicated", {"status": "not asked for"})
    return [*lines, *peer_rows("Kafka", peer)]


def table_head(what: str) -> list[str]:
    columns = ("100 B, batches of 1,000", "disk", "1 KiB", "disk", "a lone record, p50", "memory", "")
    return [f"| {what} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]


def peer_rows(title: str, peer: dict[str, Any]) -> list[str]:
    """A row, and another of the same without its syncs where that was measured."""
    if "append" not in peer:
        return [f"| {title} | {peer['status']} | | | | | | {peer.get('how', '')} |"]
    rows = []
    for suffix, how in (("", peer["how"]), (UNSYNCED, "the same, not synced: as it is usually run")):
        if "append" + suffix in peer:
            parts = [peer.get(name + suffix) for name in ("append", "append_1k", "latency")]
            rows.append(peer_row(f"{title} {peer['version']}", parts, how))
    return rows


def peer_row(title: str, parts: Sequence[dict[str, Any] | None], how: str) -> str:
    """Of 100 B, of 1 KiB, and of lone records; what was not measured is left out."""
    append, large, lone = parts
    cells = [title]
    for fields in (append, large):
        cells += [rate(fields["records_per_s"]), beside(fields)] if fields else ["", ""]
    memory = max((fields["rss_mb"] for fields in parts if fields and "rss_mb" in fields), default=0)
    cells += [milliseconds(lone["p50_ms"]) if lone else "", megabytes(memory), how]
    return f"| {' | '.join(cells)} |"


def beside(fields: dict[str, Any]) -> str:
    """What the bare loop did beside it, of the same records."""
    return f"{throughput(fields['raw_mb_per_s'])}, {fields['ratio_to_raw']:.2f} of it"


def lead(results: Results) -> list[str]:
    """How far ahead of Kafka, as measured: of the one that keeps the same promise, and of the usual one."""
    own, peers = results["ister"], results["peers"]
    one, three = peers.get("kafka", {}), peers.get("kafka_replicated", {})
    if "append_1k" not in one or "append" not in three or "replicated" not in own:
        return []
    pairs = (
        ("100 B on one node", own["append"], one, "append"),
        ("1 KiB on one node", own["append_1k"], one, "append_1k"),
        ("100 B on three", own["replicated"], three, "append"),
        ("1 KiB on three", own["replicated_1k"], three, "append_1k"),
    )
    said = []
    for suffix, whom in (
        ("", "Kafka that syncs each batch before it acknowledges it"),
        (UNSYNCED, "Kafka as it is usually run, which acknowledges what no disk has yet"),
    ):
        times = [
            f"{mine['records_per_s'] / theirs[name + suffix]['records_per_s']:.1f}"
            for _, mine, theirs, name in pairs
        ]
        said.append(
            f"against {whom}, {times[0]} times the records of 100 B and {times[1]} times those of 1 KiB "
            f"on one node, {times[2]} and {times[3]} times on three"
        )
    ran = (
        "All are warm and write the same records, past the end of a segment, with the bare loop beside them."
    )
    return ["", f"{ran} Ister writes, {'; '.join(said)}.{another_disk(pairs)}"]


def another_disk(pairs: Sequence[tuple[str, dict[str, Any], dict[str, Any], str]]) -> str:
    """Where the disk itself was much faster under one of the two: the ratio is then also the disk's."""
    differ = []
    for what, mine, theirs, name in pairs:
        raw = mine["raw_mb_per_s"], theirs[name]["raw_mb_per_s"]
        if max(raw) > UNSTEADY * min(raw):
            differ.append(f"{what}: {throughput(raw[0])} under Ister, {throughput(raw[1])} under Kafka")
    if not differ:
        return ""
    return f" The disk itself was not the same for both, and is part of these ratios ({'; '.join(differ)})."


def subscription_table(results: Results) -> list[str]:
    """Ister's beside what was asked of them, then the peers'."""
    found = results.get("subscriptions", {})
    if "ister" not in found:
        return []
    asked = ("**Ister**, asked for", *(bound.bound for bound in SUBSCRIPTIONS_ASKED[:4]), "")
    rows = [asked]
    for name, title in {"ister": "**Ister**", **PEER_NAMES}.items():
        peer = found.get(name)
        if peer is None:
            continue
        if "delivery" not in peer:
            rows.append((title, peer["status"], "", "", "", peer["how"]))
            continue
        cells = [one.show(one.value({"ister": peer})) for one in SUBSCRIPTIONS_ASKED[:4]]
        how = peer.get("how", "synced, then delivered")
        rows.append((f"{title} {peer.get('version', '')}".strip(), *cells, how))
    own = {"ister": found["ister"]}
    kept = [one for one in SUBSCRIPTIONS_ASKED if one.verdict(own) == "**no**"]
    more = [f"{one.what}: {one.show(one.value(own))} ({one.bound})" for one in SUBSCRIPTIONS_ASKED[4:]]
    more += [f"not kept: {one.what}" for one in kept]
    heads = ("subscriptions, 100 B", "one consumer", "eight", "published to delivered, p50", "p99", "")
    lines = ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), "", f"Of Ister also {'; '.join(more)}."]


def spark_tables(results: Results) -> list[str]:
    """Scans and writes through Spark, each beside what else was measured in the same session."""
    spark = results.get("spark", {})
    lines: list[str] = []
    if "spark_scan" in spark:
        rates = spark["spark_scan"]["rows_per_s"]
        lines += ["", "| Spark scans, rows of 200 B | all of Kafka's columns | offset, timestamp, value |"]
        lines += ["|---|---|---|"]
        lines += [
            f"| {spark_title(name)} | {rows(found)} | {rows(rates['three'][name])} |"
            for name, found in rates["all"].items()
        ]
    lines += history_table(spark)
    if "spark_writes" in spark:
        lines += ["", "| Spark writes, rows of 200 B | |", "|---|---|"]
        written = spark["spark_writes"]["rows_per_s"].items()
        lines += [f"| {spark_title(name)} | {rows(found)} |" for name, found in written]
    return lines


def history_table(spark: dict[str, Any]) -> list[str]:
    """Of history that Spark reads past the brokers: asked, and measured."""
    lines: list[str] = []
    found = spark.get("spark_history")
    if found is not None:
        rates, of_parquet = found["rows_per_s"], found["of_parquet"]
        lines += [
            _history_row("scan of all of Kafka's columns", 2.7e6, rates["all"]["history"], rows),
            _history_row("the same, of Parquet's rate", 0.6, of_parquet["all"], _part),
            _history_row(
                "scan of offset, timestamp, value, of Parquet's rate", 0.9, of_parquet["three"], _part
            ),
            _history_row("count with one column", 4e6, rates["count"], rows),
            f"| scan of frames of one record | stated | {rows(rates['frames_of_one_record'])} |  |",
            _history_row(
                "the broker's CPU meanwhile, of a core", 0.02, found["broker_core"], _part, most=True
            ),
            _history_row("tier to zstd Parquet", 300, found["mb_per_s"]["tier"], throughput),
            _history_row("audit", 600, found["mb_per_s"]["audit"], throughput),
        ]
    if "spark_compact" in spark:
        rate = spark["spark_compact"]["mb_per_s"]["compact"]
        lines.append(_history_row("compact into objects of 512 MB", 250, rate, throughput))
    for name, topic in spark.get("spark_growth", {}).get("topics", {}).items():
        lines.append(_history_row(f"planning a table of {name}", 2.0, topic["plan_s"], _seconds, most=True))
    if lines:
        head = [
            "",
            "| Spark over history, past the brokers | asked for | measured | kept |",
            "|---|---|---|---|",
        ]
        return [*head, *lines]
    return []


def _history_row(
    what: str, asked: float, found: float, show: Callable[[float], str], *, most: bool = False
) -> str:
    kept = found <= asked if most else found >= asked
    bound = "at most" if most else "at least"
    return f"| {what} | {bound} {show(asked)} | {show(found)} | {'yes' if kept else '**no**'} |"


def _part(value: float) -> str:
    return f"{value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


def spark_title(name: str) -> str:
    return SPARK_NAMES.get(name, name)


def rows(rate_of: float) -> str:
    return f"{rate_of / 1e6:.2f} M rows/s"


def draw(results: Results) -> dict[str, str]:
    """Pictures by file name."""
    machine = results["machine"]
    where = f"client and server together on {machine['cores']} cores, {machine['filesystem']}"
    appends = [("Ister", results["ister"]["append"], True)]
    lone = [("Ister", results["ister"]["latency"], True)]
    for name, title in PEER_NAMES.items():
        peer = results["peers"].get(name, {})
        for suffix in ("", UNSYNCED):
            synced = "" if peer.get("synced") and not suffix else " (not synced)"
            if "append" + suffix in peer:
                appends.append((title + synced, peer["append" + suffix], False))
            if "latency" + suffix in peer:
                lone.append((title + synced, peer["latency" + suffix], False))
    timelines = {
        f"{name}.svg": draw_one(results["ister"][name]["timeline"])
        for name, draw_one in (("election", draw_timeline), ("failover", draw_failover))
        if "timeline" in results["ister"].get(name, {})
    }
    return {
        **timelines,
        "bench-append.svg": bar_chart(
            "100 B records in batches of 1,000, records a second",
            f"More is better. Acknowledged after a sync unless it says otherwise; {where}.",
            [
                Bar(title, fields["records_per_s"], rate(fields["records_per_s"]), own)
                for title, fields, own in appends
            ],
        ),
        "bench-latency.svg": bar_chart(
            "A lone 100 B record, one in flight, p50",
            f"Less is better. Acknowledged after a sync unless it says otherwise; {where}.",
            [
                *(
                    Bar(title, fields["p50_ms"], milliseconds(fields["p50_ms"]), own)
                    for title, fields, own in lone
                ),
                _bare_write(results),
            ],
        ),
    }


def _bare_write(results: Results) -> Bar:
    raw_ms = results["ister"]["latency"]["raw_p50_ms"]
    return Bar("a bare write and sync", raw_ms, milliseconds(raw_ms))
