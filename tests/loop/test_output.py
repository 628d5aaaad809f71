"""Structured output: what is asked for, and how the answer is read."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import treadle
from tests.conftest import Route
from treadle import Harness, aagent
from treadle.errors import InvalidType, OutputInvalid
from treadle.loop.output import output_of, output_of_schema
from treadle.models.base import Abilities
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say


class Item(BaseModel):
    name: str
    note: str | None = None


class Order(BaseModel):
    """An order."""

    items: list[Item] = Field(default_factory=list[Item])
    total: int


class Free(BaseModel):
    counts: dict[str, int]


ORDER = Order(items=[Item(name="a")], total=3)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.mark.parametrize("kind", [dict, "Order", Order(total=1), int, list[int]])
def test_only_pydantic_models_are_taken(kind: Any) -> None:
    with pytest.raises(InvalidType, match="pydantic model class"):
        output_of(kind)


@pytest.mark.parametrize(
    "text",
    [
        ORDER.model_dump_json(),
        f"  {ORDER.model_dump_json()}\n",
        f"Here it is:\n```json\n{ORDER.model_dump_json()}\n```\nDone.",
        f"```\n{ORDER.model_dump_json()}\n```",
        f"I thought of {{this}} first.\n{ORDER.model_dump_json()} That is all.",
    ],
)
def test_the_answer_is_found(text: str) -> None:
    output = output_of(Order)
    assert output is not None
    assert output.read(text) == ORDER


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "the answer is empty"), ("no", "Order"), ('{"total": "many"}', "total"), ("{" * 50, "Order")],
)
def test_what_is_no_answer_is_told_with_the_reason(text: str, words: str) -> None:
    output = output_of(Order)
    assert output is not None
    with pytest.raises(OutputInvalid, match=words) as caught:
        output.read(text)
    assert caught.value.raw == text


@given(st.text())
def test_reading_never_fails_in_another_way(text: str) -> None:
    output = output_of(Order)
    assert output is not None
    with contextlib.suppress(OutputInvalid):
        output.read(text)


def test_a_json_schema_is_an_output_too() -> None:
    def check(value: object) -> None:
        if value != {"n": 1}:
            raise ValueError("n must be 1")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    output = output_of_schema(schema, check, name="my schema!")

    assert output.schema.name == "my_schema_"
    assert output.read('{"n": 1}') == {"n": 1}
    with pytest.raises(OutputInvalid, match="n must be 1"):
        output.read('{"n": 2}')
    assert output_of(output) is output
    assert output_of(None) is None


@pytest.mark.parametrize("kind", [Order, Free])
async def test_every_route_takes_the_schema_with_every_call(
    kind: type[BaseModel], route: Route, folder: LocalSandbox
) -> None:
    answer = ORDER.model_dump_json() if kind is Order else '{"counts": {"a": 1}}'
    async with route.serve([call("add", a=1, b=2), say(answer)]) as (fake, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], output=kind, **where)
        bodies: Any = [request.body for request in fake.requests]

    assert result.output == kind.model_validate_json(answer)
    for body in bodies:
        if route.path == "/v1/messages" and kind is Free:
            assert "JSON Schema" in body["system"]  # that wire takes closed objects only
        elif route.path == "/v1/messages":
            assert body["output_config"]["format"]["type"] == "json_schema"
        else:
            assert body["response_format"]["json_schema"]["name"] == kind.__name__
            assert body["response_format"]["json_schema"]["strict"] is (kind is Order)


async def test_an_invalid_answer_raises_with_the_whole_turn(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say('{"total": "x"}')])
    with pytest.raises(OutputInvalid, match="total") as caught:
        await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, output=Order)

    assert isinstance(caught.value.result, treadle.Result)
    assert caught.value.result.usage.calls == 2
    assert caught.value.raw == '{"total": "x"}'


async def test_without_an_answer_nothing_is_validated(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2)])
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, output=Order, max_turns=1
    )

    assert (result.stop_reason, result.output) == ("max_turns", None)


async def test_a_model_without_schemas_is_told_in_words(folder: LocalSandbox) -> None:
    model = ScriptedModel([say(ORDER.model_dump_json())], abilities=Abilities(output_schema=False))
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, output=Order, instructions="Be kind."
    )

    assert result.output == ORDER
    assert model.requests[0].output is None
    assert "JSON Schema" in model.requests[0].messages[0].text
    assert "Be kind." in model.requests[0].messages[0].text


class Node(BaseModel):
    score: int = Field(ge=1, le=5)
    children: list["Node"] = Field(default_factory=list["Node"])


class Rated(BaseModel):
    score: int = Field(ge=1, le=5)
    tags: list[str] = Field(min_length=1)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Rated, '{"score": 5, "tags": ["a"]}'),
        (Node, '{"score": 1, "children": [{"score": 2, "children": []}]}'),
    ],
)
async def test_limits_and_recursion_are_said_as_each_wire_takes_them(
    kind: type[BaseModel], answer: str, route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([say(answer)]) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, output=kind, **where)

    assert result.raise_for_error().output == kind.model_validate_json(answer)
