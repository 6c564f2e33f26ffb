"""Test controls: ways to break a node on purpose.

Off unless the configuration turns them on, and then only for connections from loopback that know the
cluster's secret (W11: nobody may revoke a lease from afar).
"""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING

from ister.errors import BadRequest, ControlRefused
from ister.protocol.messages import Control

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.clients.controls")

_LOOPBACK = ("127.", "[::1]:", "::1:")


def carry_out(broker: Broker, control: Control, peer: str) -> None:
    config = broker.config
    if not config.test_controls:
        raise ControlRefused(f"node {config.node_id} takes no test controls: test_controls is off")
    if not peer.startswith(_LOOPBACK):
        raise ControlRefused(f"test controls are taken from loopback only, this connection is from {peer}")
    if not config.cluster_secret or not hmac.compare_digest(
        control.secret.encode(), config.cluster_secret.encode()
    ):
        raise ControlRefused("the secret is not the cluster's")
    log.warning("test control", extra={"fields": {"action": control.action, "topic": control.topic}})
    match control.action:
        case "revoke-leases":
            broker.revoke_leases(control.topic)
        case "sync-leases":
            broker.restore_leases()
        case "monitor-error":
            broker.upkeep.fail_next(control.count)
        case "forward-error":
            broker.forwarder.fail_next(control.count)
        case _:
            raise BadRequest(
                f"there is no test control {control.action!r}",
                hint="Use revoke-leases, sync-leases, monitor-error or forward-error.",
            )
