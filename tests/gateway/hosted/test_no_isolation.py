"""A gateway on a machine that cannot isolate code: skills that are instructions work, code is an error."""

import anthropic
import anyio
import openai
import pytest

from tests.gateway.hosted.conftest import Shop
from treadle.sandbox import ladder
from treadle.testing import call, say

GO = {"role": "user", "content": "Go."}


@pytest.fixture
def no_isolation(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.host, "_containers", None)
    monkeypatch.setattr(ladder, "_kept", [ladder.report_of(ladder.probe().host, None)])


@pytest.mark.usefixtures("no_isolation")
@pytest.mark.parametrize("wire", ["chat", "messages"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_code_that_cannot_be_isolated_is_an_error_that_says_why(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    instructions = call(shop.ids["gif-maker"].replace("-", "_"))
    code = call("litellm_code_execution", code="print(1)")
    async with shop.serving([instructions, say("Read.")], wire) as serving:
        answer = await serving.client(kind, streamed=streamed).ask([GO], shop.container("gif-maker"))
        assert answer.text == "Read."

    async with shop.serving([code, say("never")], wire) as serving:
        with anyio.fail_after(20), pytest.raises((openai.APIError, anthropic.APIError)) as caught:
            await serving.client(kind, streamed=streamed).ask([GO], shop.container("gif-maker"))
        assert len(serving.fake.requests) == 1
        (spent,) = await serving.gateway.spent()
        assert spent.usage.calls == 1
    assert "no code can be run isolated here: containers are made of what only Linux has" in str(caught.value)
    if not streamed:  # else the answer has begun
        assert isinstance(caught.value, openai.BadRequestError | anthropic.BadRequestError)
