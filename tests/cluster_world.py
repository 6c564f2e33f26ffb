"""Moved to `ister.testing.cluster`; here for tests that were written meanwhile."""

from ister.testing.cluster import *  # noqa: F403
from ister.testing.cluster import CLIENT_PORT as CLIENT_PORT
from ister.testing.cluster import PEER_PORT as PEER_PORT
