"""What a client asks that may be sent again: one request, with its way and its retries.

Each is repeated after errors that may pass, until `retry_deadline_s`. Where a repeat could find its own
earlier attempt done, as with a topic made or deleted, whoever asks says so or takes it for done.
"""

from __future__ import annotations

from ister.client.connection import Answer
from ister.client.reader import topic_of
from ister.client.retry import Retries
from ister.client.routing import Routes
from ister.errors import IsterError
from ister.io.clock import Clock


class Requests:
    """How a log asks brokers, and how long."""

    def __init__(
        self, routes: Routes, clock: Clock, request_timeout_s: float, retry_deadline_s: float
    ) -> None:
        self.routes = routes
        self.clock = clock
        self.request_timeout_s = request_timeout_s
        self.retry_deadline_s = retry_deadline_s

    async def call(
        self, what: str, kind: int, header: bytes, topic: str | None = None, *, wait_s: float = 0.0
    ) -> Answer:
        """One request that may be repeated safely, with its retries."""
        retries = self.retries_of(what, topic_of(topic) if topic is not None else "")
        return await self.attempt(retries, kind, header, topic, wait_s=wait_s)

    async def attempt(
        self, retries: Retries, kind: int, header: bytes, topic: str | None, *, wait_s: float = 0.0
    ) -> Answer:
        timeout_s = self.request_timeout_s + wait_s
        while True:
            try:
                connection = await self.routes.connection(topic)
                return await connection.request(kind, header, timeout_s=timeout_s, wait_s=wait_s)
            except IsterError as error:
                if self.routes.is_closed:
                    raise  # whatever it was, nothing of this log will be tried again
                self.routes.failed(topic, error)
                await retries.pause(error)

    async def ask_once(self, kind: int, header: bytes, key: str, wait_s: float) -> Answer:
        """One attempt, for whoever sees to the others by itself."""
        connection = await self.routes.connection(key)
        return await connection.request(
            kind, header, timeout_s=self.request_timeout_s + wait_s, wait_s=wait_s
        )

    def retries_of(self, what: str, topic: str = "") -> Retries:
        return Retries(self.clock, self.retry_deadline_s, what, topic)

    def learned_way(self, key: str, node_id: int) -> None:
        """Which node answers for this key, by itself."""
        self.routes.learned(key, node_id)

    def way_failed(self, key: str, error: IsterError) -> None:
        if self.routes.is_closed:
            raise error
        self.routes.failed(key, error)

    def token(self) -> int:
        """A number that nobody else has, by chance."""
        return self.clock.token()


class Part:
    """What a log can do about one thing. A log is all of its parts; how it asks is all that they share."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
