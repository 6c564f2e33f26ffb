"""The part of a log about moves of topics."""

from __future__ import annotations

from ister.client.requests import Part
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind
from ister.protocol.moves import (
    Balance,
    BalanceAnswer,
    CancelMove,
    ListMoves,
    MoveDescription,
    MoveList,
    MoveTopic,
)


class Moves(Part):
    """Moves of topics."""

    async def move_topic(self, topic: str, node_id: int, *, plan: bool = False) -> MoveDescription:
        """Let another node lead a topic, and stay its leader across rollovers. Returns once the move is
        requested; `moves` says how it goes. With `plan`, what would be done, and nothing is."""
        return await self._move(MoveTopic(normalise_topic(topic), node_id, plan=plan))

    async def unload_topic(self, topic: str, *, plan: bool = False) -> MoveDescription:
        """Let another node lead a topic, whichever is next."""
        name = normalise_topic(topic)
        found = await self._move(MoveTopic(name, plan=True))
        # With a definite target: sent again, it is the same move.
        return found if plan else await self._move(MoveTopic(name, found.target, stays=False))

    async def release_topic(self, topic: str) -> MoveDescription:
        """A topic need not stay on the node that it was moved to any more."""
        return await self._move(MoveTopic(normalise_topic(topic), release=True))

    async def _move(self, request: MoveTopic) -> MoveDescription:
        answer = await self.requests.call(f"moving {request.topic}", Kind.MOVE_TOPIC, encode_header(request))
        return decode_header(MoveDescription, answer.header)

    async def moves(self, topic: str = "", move: int = 0) -> list[MoveDescription]:
        """Those that are under way, and the last ones that are over, oldest first; of one topic, or one."""
        request = ListMoves(normalise_topic(topic) if topic else "", move)
        answer = await self.requests.call("listing moves", Kind.LIST_MOVES, encode_header(request))
        return decode_header(MoveList, answer.header or answer.payload).moves

    async def cancel_move(self, move: int) -> MoveDescription:
        """Before the seal the topic stays where it is, after it where it is by then."""
        answer = await self.requests.call(
            f"cancelling move {move}", Kind.CANCEL_MOVE, encode_header(CancelMove(move))
        )
        return decode_header(MoveDescription, answer.header)

    async def balance(self, *, dry_run: bool = False, strategy: str = "") -> BalanceAnswer:
        """Move topics so that nodes carry alike, or with `dry_run` say which would be moved. A repeat finds
        moves that are under way, and moves nothing twice."""
        answer = await self.requests.call(
            "balancing", Kind.BALANCE, encode_header(Balance(dry_run, strategy))
        )
        return decode_header(BalanceAnswer, answer.header or answer.payload)
