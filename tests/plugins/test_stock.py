"""The same requests where only LiteLLM's own hook is there, in whose store the skill is."""

import openai
import pytest

from tests.plugins.conftest import STOCK_HEADING, House, every_way
from tests.skills.jobs import JOBS
from treadle.testing import call, say

pytestmark = pytest.mark.slow
HOOK = ""

JOB = JOBS["gif-maker"]


@every_way
async def test_nothing_runs_and_the_model_never_gets_a_result(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    house.stage.steps.extend([call("litellm_code_execution", code=JOB.code), say("Here is your GIF.")])
    messages = [{"role": "user", "content": JOB.prompt}]
    asked = house.client(kind, streamed=streamed).ask(messages, house.container("gif-maker"), model=model)

    if (kind, model) == ("openai", "coder"):  # it is sent tools in the shape of Messages
        with pytest.raises(openai.BadRequestError, match=r"tools\[0\]"):
            await asked
    else:
        answer = await asked
        assert (answer.text, answer.files, len(answer.calls)) == ("", [], 1)
    assert len(house.upstream.requests) == 1
    assert STOCK_HEADING in str(house.bodies)
