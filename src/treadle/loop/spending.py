"""What a run spent: tokens and money."""

from dataclasses import dataclass, field, replace

import anyio

from treadle.conversation.events import LimitReached
from treadle.conversation.native_code import began
from treadle.conversation.request import Reply
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import ModelError
from treadle.loop.plan import Plan
from treadle.telemetry import is_recording, record


@dataclass(slots=True)
class Spending:
    """Counts the model calls of one run."""

    plan: Plan
    usage: Usage = NO_USAGE
    cost: float = 0.0
    """US dollars, as far as they are known."""
    cost_known: bool = True
    _tokens_known: bool = field(default=True, init=False)
    _unpriced: list[Usage] = field(default_factory=list[Usage], init=False)

    async def count(self, reply: Reply, *, native: bool = False, resumed: bool = False) -> None:
        """Count a reply.

        Args:
            reply: of the model.
            native: something in it is of code that the provider runs.
            resumed: such code went on, and no model was asked.
        """
        usage = reply.usage
        if native:
            runs = sum(began(block) is not None for block in reply.message.blocks)
            usage = replace(usage, calls=int(not resumed), code_runs=runs)
        elif usage.calls != 1:
            usage = replace(usage, calls=1)
        self.usage += usage
        self._tokens_known = self._tokens_known and (resumed or usage.total_tokens > 0)
        if reply.cost is not None or self.plan.price is None:
            self._add(reply.cost)
        elif self.plan.limits.max_cost is None:
            self._unpriced.append(usage)
        else:
            self._add(await self._price(usage))
        if is_recording():
            told = {"model": self.plan.model.name, "id": reply.id, **vars(usage), "cost": reply.cost}
            record("model call", told)

    def failed(self, error: BaseException) -> None:
        """A model call brought no reply. What was cut off may be billed all the same."""
        refused = isinstance(error, ModelError) and error.status is not None and error.status < 500
        self.cost_known = self.cost_known and refused

    def limit(self) -> LimitReached | None:
        """The limit that forbids a further model call."""
        cost = self.cost if self.cost_known else None
        return self.plan.limits.reached(self.usage, cost, tokens_known=self._tokens_known)

    async def settle(self) -> None:
        """Price what no provider priced. Apart from the calls: the first time, it loads a table of prices."""
        unpriced, self._unpriced = self._unpriced, []
        for usage in unpriced:
            self._add(await self._price(usage))

    async def _price(self, usage: Usage) -> float | None:
        return await anyio.to_thread.run_sync(self.plan.price, usage) if self.plan.price else None

    def _add(self, cost: float | None) -> None:
        self.cost += cost or 0.0
        self.cost_known = self.cost_known and cost is not None
