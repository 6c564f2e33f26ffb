"""The load manager: what nodes report of their load, and the moves that follow from it.

Each node notes every 30 s what it carries. The metadata leader asks all for that and, if it was told to,
moves topics from who carries most to who carries least (`spreading`). A rebalance is a move like any other,
with the reason `balance`, which changes nothing of what is safe (D14); and it is bounded: by a pause
between two of them, by moves an hour, and by topics that are too young, excluded, or were put where they
are by an operator.

Fault model: nodes do not answer, reports are old, the leader changes. How many moves there were, and when,
is in the metadata with them; a report that is missing makes the whole round wait, since to leave a node out
would look as if it carried nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from ister.asking import ask_each
from ister.broker.node.spreading import NodeLoad, Plan, Strategy, TopicLoad, plan
from ister.broker.topic.sealing import seen_by
from ister.errors import BadRequest, IsterError, NotLeader
from ister.io.clock import monotonic
from ister.metadata.moves import MoveReason
from ister.metadata.state import TopicState
from ister.protocol import moves as messages
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Empty, Kind
from ister.protocol.peer import node_of

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.balancing")

REPORT_SECONDS = 30.0
ASK_SECONDS = 3.0
HOUR_US = 3_600_000_000
OFF = "off"


class Usage(NamedTuple):
    """Of this process, as its edge measures it."""

    cpu_seconds: float = 0.0
    """Used since its start."""
    memory_bytes: int = 0


class NodeBalancing:
    """One for each broker, from its start on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.usage: Callable[[], Usage] = Usage
        self._report: messages.LoadReport | None = None
        self._before: tuple[float, Usage, dict[str, float], dict[int, int]] | None = None

    async def run(self) -> None:
        while True:
            try:
                self._note()
                if self._broker.config.balance != OFF and self._broker.metadata.is_leader:
                    await self._balance()
            except IsterError as error:
                log.debug("no rebalance in this round: %s", error)
            await asyncio.sleep(REPORT_SECONDS)

    # What this node carries.

    def report(self) -> messages.LoadReport:
        """The last one: at most 30 s old."""
        return self._report or self._note()

    def _note(self) -> messages.LoadReport:
        broker = self._broker
        now, usage, figures = monotonic(), self.usage(), broker.metrics.values()
        sizes = {topic.state.uid: topic.facts.bytes for topic in broker.topics.values() if topic.leads}
        before = self._before or (now, usage, figures, sizes)
        self._before = now, usage, figures, sizes
        seconds = max(now - before[0], 1e-9) if self._report is not None else 1.0

        def rate(name: str) -> float:
            return max(0.0, figures.get(name, 0.0) - before[2].get(name, 0.0)) / seconds

        self._report = messages.LoadReport(
            broker.metadata.member,
            [(uid, max(0, size - before[3].get(uid, size)) / seconds) for uid, size in sizes.items()],
            rate("bytes_in_total"),
            rate("bytes_out_total"),
            max(0.0, usage.cpu_seconds - before[1].cpu_seconds) / seconds,
            usage.memory_bytes,
            broker.disk.free_bytes(),
        )
        return self._report

    async def gather(self) -> list[messages.LoadReport]:
        """Of all that lead topics or could: of the active nodes that are not drained."""
        broker = self._broker
        drained = broker.metadata.state.drains.members
        members = [one for one in broker.metadata.state.active_members if one not in drained]
        header = encode_header(Empty())

        async def ask(member: int) -> messages.LoadReport:
            if member == broker.metadata.member:
                return self.report()
            answer = await broker.forwarder.request(member, Kind.LOAD, header)
            return decode_header(messages.LoadReport, answer.header or answer.payload)

        told = await ask_each(members, ask, ASK_SECONDS)
        if told.faults:
            silent = ", ".join(str(node_of(member)) for member in told.faults)
            raise NotLeader(
                f"what nodes carry is not known of all of them: no report of {silent}",
                hint="`ister cluster health` names the nodes that are down; drain or start them.",
            )
        return list(told.answers.values())

    # Rebalancing.

    async def _balance(self) -> None:
        """One round on its own initiative."""
        broker, config = self._broker, self._broker.config
        now_us = broker.clock.now_us()
        times = self._rebalanced()
        is_cooling = any(now_us - at < config.balance_cooldown_ms * 1000 for at in times)
        left = config.balance_moves_per_hour - sum(now_us - at < HOUR_US for at in times)
        running = any(row.is_on_its_way for row in broker.metadata.state.moves.rows.values())
        if is_cooling or left <= 0 or running:
            return
        found = self._plan(await self.gather(), Strategy(config.balance), left)
        for shift in found.shifts:
            await self._request(shift.topic.uid, shift.target)

    def _rebalanced(self) -> list[int]:
        rows = self._broker.metadata.state.moves.rows.values()
        return [row.requested_at_us for row in rows if row.reason == MoveReason.BALANCE]

    async def balance(self, request: messages.Balance) -> messages.BalanceAnswer:
        """Asked for by an operator: at once, whether or not the load manager is on."""
        broker, config = self._broker, self._broker.config
        chosen = request.strategy or (config.balance if config.balance != OFF else Strategy.FAIR)
        try:
            strategy = Strategy(chosen)
        except ValueError as error:
            raise BadRequest(
                f"there is no strategy {chosen!r}", hint=f"One of {', '.join(Strategy)}."
            ) from error
        if not broker.metadata.is_alone:
            await broker.metadata.read_index(ASK_SECONDS)
        reports = await self.gather()
        found = self._plan(reports, strategy, config.balance_moves_per_hour)
        state = broker.metadata.state
        shown: list[messages.MoveDescription] = []
        for shift in found.shifts:
            move = 0 if request.dry_run else await self._request(shift.topic.uid, shift.target)
            row = state.moves.rows.get(move)
            shown.append(
                messages.MoveDescription(
                    move,
                    shift.topic.name,
                    node_of(shift.source),
                    node_of(shift.target),
                    "balance",
                    "planned" if request.dry_run else "requested",
                    request.dry_run,
                    True,
                    row.requested_at_us if row is not None else 0,
                    0,
                    0,
                )
            )
        return messages.BalanceAnswer(
            str(strategy),
            config.balance_threshold_percent / 100,
            found.before,
            found.after,
            [
                messages.NodeBurden(
                    node_of(report.member),
                    len(report.topics),
                    report.bytes_in,
                    report.bytes_out,
                    report.cpu,
                    report.memory_bytes,
                    report.disk_free_bytes,
                    found.burdens[report.member],
                )
                for report in reports
            ],
            shown,
        )

    async def _request(self, uid: int, target: int) -> int:
        state = self._broker.metadata.state.topic_by_uid(uid)
        topic = self._broker.topics.get(state.name) if state is not None else None
        if topic is None:
            return 0
        return (await self._broker.moves.request(topic, target, MoveReason.BALANCE, stays=True)).index

    def _plan(self, reports: list[messages.LoadReport], strategy: Strategy, most: int) -> Plan:
        broker = self._broker
        state, able = broker.metadata.state, seen_by(broker.storage).able
        nodes: list[NodeLoad] = []
        for report in reports:
            if report.member not in able:
                continue
            topics = [
                TopicLoad(uid, topic.name, rate, self._may_move(topic))
                for uid, rate in report.topics
                if (topic := state.topic_by_uid(uid)) is not None
                and topic.open_segment.leader == report.member
            ]
            nodes.append(
                NodeLoad(
                    report.member, topics, report.bytes_in, report.bytes_out, report.cpu, report.memory_bytes
                )
            )
        return plan(nodes, strategy, broker.config.balance_threshold_percent / 100, most)

    def _may_move(self, topic: TopicState) -> bool:
        """Not what is young or was moved lately, is excluded, or stays where an operator put it."""
        broker, config = self._broker, self._broker.config
        if any(
            fnmatchcase(topic.name, one.strip()) for one in config.balance_exclude.split(",") if one.strip()
        ):
            return False
        rows = [row for row in broker.metadata.state.moves.rows.values() if row.topic_uid == topic.uid]
        if topic.home and not (rows and rows[-1].reason == MoveReason.BALANCE):
            return False
        if any(not row.is_over for row in rows):
            return False
        since_us = max([topic.created_at_us, *(row.requested_at_us for row in rows)])
        return broker.clock.now_us() - since_us >= config.balance_min_topic_age_ms * 1000
