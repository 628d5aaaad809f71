"""The strict validators' tables against the request types of the official packages, so that drift is seen."""

import collections.abc
import types
import typing
from collections.abc import Iterator

import anthropic.types.message_create_params as messages_types
import openai.types.chat.completion_create_params as chat_types
import pytest
from typing_extensions import is_typeddict

from treadle.testing import strict_chat_shapes, strict_messages
from treadle.testing.strict_shapes import (
    Array,
    Boolean,
    Dictionary,
    Either,
    Nullable,
    Number,
    Object,
    Shape,
    String,
    Tagged,
    Word,
)

Hint = typing.Any
"""A type as `typing` gives it at run time."""

CHAT_DIFFERENCES = {
    # Every reply has it, and is sent back as it came.
    "assistant: ours alone has `annotations`",
}

MESSAGES_DIFFERENCES = {
    # Removed from the types in version 1, taken by the API all the same.
    *(f": ours alone has `{name}`" for name in ("temperature", "top_k", "top_p")),
    # The tools and blocks of the beta types that have no successor among the others, or old clients.
    *(
        f"tools: ours alone has `{name}`"
        for name in (
            *("bash_20241022", "text_editor_20241022", "mcp_toolset"),
            *("computer_20241022", "computer_20250124", "computer_20251124"),
        )
    ),
    *(f"content: ours alone has `{name}`" for name in ("mcp_tool_use", "mcp_tool_result")),
    # Replies have them, by their types or in recordings, and are sent back as they came.
    *(
        f"{name}: ours alone has `file_id`"
        for name in ("char_location", "page_location", "content_block_location")
    ),
    "caller: ours alone may be null",
    "code_execution_result: ours alone has `abort_reason`",
}


def parts(hint: Hint) -> list[Hint]:
    """The options of a union, or the one type; `Required` and `Annotated` are looked through."""
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        return parts(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [part for option in typing.get_args(hint) for part in parts(option)]
    return [hint]


def fields(kind: Hint) -> dict[str, Hint]:
    return typing.get_type_hints(kind, include_extras=True)


def is_array(hint: Hint) -> bool:
    origin = typing.get_origin(hint)
    return origin in (list, collections.abc.Iterable) or "Sequence" in str(origin)


def words(hints: list[Hint]) -> set[str]:
    return {
        word for hint in hints if typing.get_origin(hint) is typing.Literal for word in typing.get_args(hint)
    }


def differences(shape: Shape, hints: list[Hint], where: str) -> Iterator[str]:
    """Where `shape` is not what `hints` say, one sentence each."""
    match shape:
        case Nullable(inner):
            if type(None) not in hints:
                yield f"{where}: ours alone may be null"
            yield from differences(inner, [hint for hint in hints if hint is not type(None)], where)
        case Either(shapes):
            for option in shapes:
                yield from differences(option, [hint for hint in hints if fits(option, hint)], where)
        case Tagged():
            yield from variants(shape, hints, where)
        case Object():
            yield from members(shape, [hint for hint in hints if is_typeddict(hint)], where)
        case Array(items):
            inner = [part for hint in hints for part in parts(typing.get_args(hint)[0])]
            yield from differences(items, inner, where)
        case Word(allowed):
            yield from compared(set(allowed), words(hints), where)
        case _:
            if not any(fits(shape, hint) for hint in hints):
                yield f"{where}: {shape} is not {hints}"


def fits(shape: Shape, hint: Hint) -> bool:
    match shape:
        case Array():
            return is_array(hint)
        case Object() | Tagged():
            return is_typeddict(hint)
        case Dictionary():
            return typing.get_origin(hint) is dict or is_typeddict(hint)
        case Number():
            return hint is int if shape.integer else hint in (int, float)
        case Boolean():
            return hint is bool or typing.get_args(hint) in ((False,), (True,))
        case String() | Word():
            return hint is str or typing.get_origin(hint) is typing.Literal
        case _:
            return True


def compared(ours: set[str], theirs: set[str], where: str) -> Iterator[str]:
    yield from (f"{where}: ours alone has `{name}`" for name in sorted(ours - theirs))
    yield from (f"{where}: ours lacks `{name}`" for name in sorted(theirs - ours))


def members(shape: Object, kinds: list[Hint], where: str, tag: str | None = None) -> Iterator[str]:
    """The same for the keys of an object, which several types may describe together."""
    hints = [{name: hint for name, hint in fields(kind).items() if name != tag} for kind in kinds]
    yield from compared(shape.keys, {name for described in hints for name in described}, where)
    for name, inner in {**shape.required, **shape.optional}.items():
        named = [described[name] for described in hints if name in described]
        required = [typing.get_origin(hint) is typing.Required for hint in named]
        if named and all(required) != (name in shape.required):
            yield f"{where}: `{name}` is required by one of us"
        if named:
            options = [part for hint in named for part in parts(hint)]
            yield from differences(inner, options, f"{where}.{name}".removeprefix("."))


def variants(shape: Tagged, hints: list[Hint], where: str) -> Iterator[str]:
    kinds = {
        word: hint
        for hint in hints
        if is_typeddict(hint)
        for word in words(parts(fields(hint).get(shape.key))) or {shape.default or ""}
    }
    yield from compared(set(shape.variants), set(kinds), where)
    for name, variant in shape.variants.items():
        if name in kinds:
            yield from members(variant, [kinds[name]], f"{where}.{name}", shape.key)


@pytest.mark.parametrize(
    ("shape", "kind", "known"),
    [
        pytest.param(
            strict_chat_shapes.REQUEST,
            chat_types.CompletionCreateParamsNonStreaming,
            CHAT_DIFFERENCES,
            id="openai",
        ),
        pytest.param(
            strict_messages.REQUEST,
            messages_types.MessageCreateParamsNonStreaming,
            MESSAGES_DIFFERENCES,
            id="anthropic",
        ),
    ],
)
def test_a_table_differs_from_the_official_types_only_where_we_say_so(
    shape: Object, kind: type, known: set[str]
) -> None:
    assert {difference.rpartition(".")[2] for difference in members(shape, [kind], "")} == known
