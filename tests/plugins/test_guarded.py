"""Guardrails of a proxy look at every step, and at the answer."""

import json

import anthropic
import openai
import pytest

from tests.plugins.conftest import House, every_way
from treadle.testing import call, say

pytestmark = pytest.mark.slow
HOOK = "own.hook"
MASKS = {"guardrail": "guardrails.Masks", "mode": ["pre_call", "post_call"], "default_on": True}
BLOCKS = {"guardrail": "guardrails.Blocks", "mode": "during_call"}
CONFIG = {
    "guardrails": [
        {"guardrail_name": "masks", "litellm_params": MASKS},
        {"guardrail_name": "blocks", "litellm_params": BLOCKS},
    ]
}


@every_way
async def test_what_a_guardrail_masks_reaches_neither_model_nor_client(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    code = "print('Rose' + 'bud')"
    house.stage.steps.extend([call("litellm_code_execution", code=code), say("In Xanadu.")])
    messages = [{"role": "user", "content": "What was Rosebud?"}]

    client = house.client(kind, streamed=streamed)
    answer = await client.ask(messages, house.container("notes"), model=model)

    assert [run["return_code"] for run in answer.runs] == [0]
    assert len(house.bodies) == 2
    assert "Rosebud" not in json.dumps(house.bodies)
    assert json.dumps(house.bodies[1]).count("[masked]") == 2
    if streamed:
        assert answer.text == "In Xanadu."  # this one reads streams, and changes nothing
        assert "srvtoolu_treadle_" in (house.proxy.folder / "streamed").read_text("utf-8")
    else:
        assert answer.text == "In [hidden]."


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_guardrail_beside_the_call_reads_what_code_printed_before_the_model_does(
    house: House, kind: str
) -> None:
    house.stage.steps.append(call("litellm_code_execution", code="print('Kane' + 'dum')"))
    more = {"guardrails": ["blocks"]}

    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="not to be said"):
        await house.client(kind).ask(
            [{"role": "user", "content": "Go."}], house.container("notes"), more, model="coder"
        )

    assert len(house.upstream.requests) == 1
