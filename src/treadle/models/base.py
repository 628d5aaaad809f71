"""What the loop knows of a model."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from treadle.conversation.request import ModelRequest, Reply

if TYPE_CHECKING:
    from treadle.conversation.deltas import Delta

OnDelta: TypeAlias = Callable[["Delta"], Awaitable[None]]
"""Gets each delta as it arrives. The stream waits while it runs: a slow listener slows the provider."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model can do that not every model can."""

    output_schema: bool = True
    """Whether the wire takes a JSON Schema for the final answer."""
    open_schema: bool = True
    """Whether that schema may have objects with free keys, or contain itself."""
    programmatic: bool | None = False
    """Whether the provider runs code that calls tools; None: what is behind it may."""


@runtime_checkable
class Model(Protocol):
    """Anything that answers a request. Bring your own by having these three members."""

    @property
    def name(self) -> str:
        """The name that goes into `ModelRequest.model`."""
        ...

    @property
    def abilities(self) -> Abilities: ...

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        """The whole reply. With `on_delta`, the reply is streamed and each delta is handed over first.

        Raises:
            ModelError: the provider said no, or there was no usable answer.
        """
        ...
