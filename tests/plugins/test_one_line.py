"""One line in the configuration of a LiteLLM proxy: a bouncing ball GIF for every client."""

import pytest

from tests.plugins.conftest import STOCK_HEADING, House, every_way
from tests.proxies import UPSTREAM_KEY
from tests.skills.jobs import JOBS
from treadle.testing import call, say

pytestmark = pytest.mark.slow

JOB = JOBS["gif-maker"]
CODE = "litellm_code_execution"


@every_way
async def test_a_gif_is_made(house: House, kind: str, model: str, *, streamed: bool) -> None:
    tool = house.ids["gif-maker"].replace("-", "_")
    house.stage.steps.extend([call(tool), call(CODE, code=JOB.code), say("Here is your GIF.")])

    client = house.client(kind, streamed=streamed)
    answer = await client.ask(
        [{"role": "user", "content": JOB.prompt}], house.container("gif-maker"), model=model
    )

    assert answer.contents == JOB.makes
    assert (answer.text, answer.calls, answer.reason) == ("Here is your GIF.", [], client.reason)
    assert len(answer.runs) == 1
    (file,) = answer.files
    assert (file["name"], file["mime_type"]) == ("bouncing_ball.gif", "image/gif")
    assert [
        request.headers.get("x-api-key") or request.headers["authorization"][7:]
        for request in house.upstream.requests
    ] == [UPSTREAM_KEY] * 3
    assert house.upstream.refusals == []
    assert STOCK_HEADING not in str(house.bodies)
    assert answer.raw["model"] == model
