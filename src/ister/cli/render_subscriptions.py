"""How subscriptions look, as JSON objects and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ister.cli.common import counted
from ister.cli.render import grouped, table
from ister.cli.terminal import Paint
from ister.protocol.subscriptions import FailurePolicy, OnFailure, SubscriptionDescription


def policy_object(policy: FailurePolicy) -> dict[str, Any]:
    return msgspec.structs.asdict(policy)


def policy_text(policy: FailurePolicy, dead_letter_topic: str) -> str:
    timeout = (
        f"after {policy.ack_timeout_ms / 1000:g} s without one" if policy.ack_timeout_ms else "never by time"
    )
    then = {
        OnFailure.BLOCK: "then for ever, at the longest pause",
        OnFailure.DROP: "then dropped",
        OnFailure.DEAD_LETTER: f"then to {dead_letter_topic}",
    }.get(OnFailure(policy.on_failure), policy.on_failure)
    pauses = f"pauses of {policy.backoff_ms / 1000:g} to {policy.backoff_max_ms / 1000:g} s"
    return f"{timeout}; {counted(policy.max_redeliveries, 'time')}, {pauses}; {then}"


def subscription_object(found: SubscriptionDescription) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "subscription": found.name,
        "uid": found.uid,
        "kind": found.kind,
        "created_at_us": found.created_at_us,
        "cursor": found.cursor,
        "acknowledged_beyond": [list(part) for part in found.beyond],
        "attempts": [list(part) for part in found.attempts],
        "owner": found.owner,
        "epoch": found.epoch,
        "paused": found.paused,
        "policy": policy_object(found.policy),
        "dead_letter_topic": found.dead_letter_topic or None,
    }


class SubscriptionListing(NamedTuple):
    subscriptions: list[SubscriptionDescription]
    prefix: str = ""

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [subscription_object(found) for found in self.subscriptions]

    def to_text(self, paint: Paint) -> str:
        if not self.subscriptions:
            where = f" of topics that start with {self.prefix!r}" if self.prefix else ""
            hint = paint("dim", "ister subscription create TOPIC NAME makes one.")
            return f"There are no subscriptions{where}. {hint}"
        rows = [
            [
                found.topic,
                paint("bold", found.name),
                f"{found.kind}{', paused' if found.paused else ''}",
                grouped(found.cursor),
                grouped(sum(end - start for start, end in found.beyond)),
                str(found.owner or "-"),
            ]
            for found in self.subscriptions
        ]
        return table(["TOPIC", "SUBSCRIPTION", "KIND", "NEXT", "BEYOND", "OWNER"], "<<<>>>", rows, paint)


class SubscriptionDetail(NamedTuple):
    found: SubscriptionDescription
    end: int

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [{**subscription_object(self.found), "end_offset": self.end, "records_behind": self.behind}]

    @property
    def behind(self) -> int:
        beyond = sum(end - start for start, end in self.found.beyond)
        return max(0, self.end - self.found.cursor - beyond)

    def to_text(self, paint: Paint) -> str:
        found = self.found
        last = f"offset {found.cursor - 1:,}" if found.cursor else "nothing yet"
        owner = f"node {found.owner}, epoch {found.epoch}" if found.owner else "none yet: nobody has consumed"
        lines = [
            f"{paint('bold', found.name)} of {found.topic}, {found.kind}{', paused' if found.paused else ''}",
            f"  acknowledged up to   {last}",
            f"  and beyond that      {counted(sum(end - start for start, end in found.beyond), 'record')}",
            f"  behind               {counted(self.behind, 'record')} of {self.end:,}",
            f"  delivered before     "
            f"{counted(sum(end - start for start, end, _ in found.attempts), 'record')} that wait",
            f"  delivered again      {policy_text(found.policy, found.dead_letter_topic)}",
            f"  owner                {owner}",
        ]
        return "\n".join(lines)
