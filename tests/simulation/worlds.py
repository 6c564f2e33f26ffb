"""The worlds that can be played from a seed, by name."""

from __future__ import annotations

from typing import Any

from tests.cluster.scenario import ClusterRun
from tests.history.world import HistoryRun
from tests.losses_sim.scenario import LossRun
from tests.moves_sim.scenario import MoveRun
from tests.replicas_sim.scenario import ReplicatedRun
from tests.simulation.scenario import BrokerRun
from tests.simulation.seeded import SeededRun
from tests.subscriptions_sim.scenario import SubscriptionRun

WORLDS: dict[str, type[SeededRun[Any]]] = {
    kind.world: kind
    for kind in (BrokerRun, ClusterRun, ReplicatedRun, LossRun, MoveRun, HistoryRun, SubscriptionRun)
}
