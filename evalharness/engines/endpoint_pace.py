"""How many requests a server gets at once, and how long a failed one waits before it is sent again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

FIRST_LIMIT = 8
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 60.0


class Pace:
    """An adaptive limit on requests in flight: additive increase, multiplicative decrease (Chiu and Jain 1989).

    It doubles a round until the server is overloaded for the first time, and adds one a round afterwards. An
    overload halves it, once a round: requests that were under way when it was halved say nothing new.
    `limit` may be read at any time; everything else belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(min(most, FIRST_LIMIT))
        self.overloads = 0
        self.retries = 0
        self._flying = 0
        self._round = 0

    @asynccontextmanager
    async def slot(self, room: asyncio.Condition) -> AsyncIterator[int]:
        """Wait for a place in flight; gives the round it began in, to be handed to `overloaded`."""
        async with room:
            await room.wait_for(lambda: self._flying < int(self.limit))
            self._flying += 1
        try:
            yield self._round
        finally:
            async with room:
                self._flying -= 1
                room.notify_all()

    def succeeded(self) -> None:
        """Raise the limit a little."""
        step = 1.0 if self.overloads == 0 else 1.0 / self.limit
        self.limit = min(float(self.most), self.limit + step)

    def overloaded(self, began_in: int) -> None:
        """Halve the limit, unless that was already done for requests of the same round."""
        if began_in == self._round:
            self.limit = max(1.0, self.limit / 2)
            self.overloads += 1
            self._round += 1


def wait_before(attempt: int, asked: float | None, chance: random.Random) -> float:
    """Seconds before attempt `attempt` (1 is the first repetition): what the server `asked` for and up to half
    more, or a random share of a doubling wait ("full jitter")."""
    if asked is not None:
        return min(asked, LONGEST_WAIT_S) * (1 + chance.random() / 2)
    return chance.uniform(0.1, 1.0) * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**attempt)
