"""One run's results as tables for the README and as pictures. Nothing here measures or remembers."""

from __future__ import annotations

from typing import Any, Final

from bench.asked import ASKED, Results, megabytes, milliseconds, rate, throughput
from bench.cluster.timeline import draw_timeline
from bench.plot import Bar, bar_chart
from bench.replication.picture import draw_failover

START: Final = "<!-- figures:start -->"
END: Final = "<!-- figures:end -->"
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
    return "\n".join([*lines, "", *peers_table(results), "", *replicated_table(results), "", *pictures()])


def pictures() -> list[str]:
    return [
        "![Records a second, in batches](docs/pictures/bench-append.svg)",
        "![A lone record](docs/pictures/bench-latency.svg)",
    ]


def peers_table(results: Results) -> list[str]:
    lines = [
        "| the same records | batches of 1,000 | a lone record, p50 | memory | |",
        "|---|---|---|---|---|",
    ]
    own = results["ister"]
    lines.append(peer_row("**Ister**", own["append"], own["latency"], "synced, then acknowledged"))
    for name, title in PEER_NAMES.items():
        peer = results["peers"].get(name, {"status": "not asked for"})
        if "append" in peer:
            lines.append(peer_row(f"{title} {peer['version']}", peer["append"], peer["latency"], peer["how"]))
        else:
            lines.append(f"| {title} | {peer['status']} | | | {peer.get('how', '')} |")
    return lines


def peer_row(title: str, append: dict[str, Any], latency: dict[str, Any], how: str) -> str:
    cells = (
        title,
        rate(append["records_per_s"]),
        milliseconds(latency["p50_ms"]),
        megabytes(max(append["rss_mb"], latency["rss_mb"])),
        how,
    )
    return f"| {' | '.join(cells)} |"


def replicated_table(results: Results) -> list[str]:
    """Three nodes each, every record on three disks; a topic of each node, or a partition of each broker."""
    lines = [
        "| three nodes, three replicas | 100 B, batches of 1,000 | 1 KiB | a lone record, p50 | memory | |",
        "|---|---|---|---|---|---|",
    ]
    own = results["ister"]
    if "replicated" in own:
        parts = [own[name] for name in ("replicated", "replicated_1k", "replicated_latency")]
        lines.append(replicated_row("**Ister**", parts, "synced by two of three, then acknowledged"))
    peer = results["peers"].get("kafka_replicated", {"status": "not asked for"})
    if "append" not in peer:
        return [*lines, f"| Kafka | {peer['status']} | | | | {peer.get('how', '')} |"]
    title = f"Kafka {peer['version']}"
    for suffix, how in (("", peer["how"]), ("_unsynced", "the same without flush.messages=1: not synced")):
        parts = [peer[name + suffix] for name in ("append", "append_1k", "latency")]
        lines.append(replicated_row(title, parts, how))
    return lines


def replicated_row(title: str, parts: list[dict[str, Any]], how: str) -> str:
    append, large, latency = parts
    cells = (
        title,
        rate(append["records_per_s"]),
        throughput(large["mb_per_s"]),
        milliseconds(latency["p50_ms"]),
        megabytes(max(append["rss_mb"], large["rss_mb"])),
        how,
    )
    return f"| {' | '.join(cells)} |"


def draw(results: Results) -> dict[str, str]:
    """Pictures by file name."""
    machine = results["machine"]
    where = f"client and server together on {machine['cores']} cores, {machine['filesystem']}"
    appends = [("Ister", results["ister"]["append"], True)]
    lone = [("Ister", results["ister"]["latency"], True)]
    for name, title in PEER_NAMES.items():
        peer = results["peers"].get(name, {})
        if "append" in peer:
            synced = "" if peer["synced"] else " (not synced)"
            appends.append((title + synced, peer["append"], False))
            lone.append((title + synced, peer["latency"], False))
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
