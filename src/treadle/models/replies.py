"""What every client does with a reply: hand its deltas on, and read what the headers say."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from treadle.conversation.blocks import immutable
from treadle.conversation.request import Reply
from treadle.conversation.usage import COST_LIMIT
from treadle.errors import BadResponse
from treadle.models.base import OnDelta
from treadle.models.failures import MESSAGE_LIMIT
from treadle.models.http import Endpoint

if TYPE_CHECKING:
    from treadle.conversation.deltas import Delta, Fold

COST_HEADERS = ("x-litellm-response-cost", "llm_provider-x-litellm-response-cost")


@immutable
class Reading:
    """Takes the key out of what the wires say of an answer that they cannot read, and shortens it then."""

    endpoint: Endpoint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, BadResponse):
            said = self.endpoint.masked(str(error))[:MESSAGE_LIMIT]
            # no cause: it would quote the key
            raise BadResponse(said, provider=self.endpoint.provider) from None


async def forward(deltas: "Iterable[Delta]", fold: "Fold", on_delta: OnDelta) -> None:
    for delta in deltas:
        fold.feed(delta)
        await on_delta(delta)


def finished(reply: Reply, headers: Mapping[str, str]) -> Reply:
    """`reply` with the cost that a gateway wrote into the headers, in US dollars."""
    cost = cost_of(headers)
    return reply if cost is None else replace(reply, cost=cost)


def cost_of(headers: Mapping[str, str]) -> float | None:
    """What a gateway says in the headers that the answer cost, in US dollars."""
    for name in COST_HEADERS:
        cost = _number(headers.get(name))
        if cost is not None:
            return cost
    return None


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return min(number, COST_LIMIT) if math.isfinite(number) and number >= 0 else None
