"""The routes that models answer: which upstream is asked, by which path, and which one next."""

import math
from collections.abc import Mapping
from typing import Any, cast

from treadle.conversation.usage import BYTES_PER_TOKEN
from treadle.errors import ModelError, ModelUnavailable
from treadle.gateway.deployments import CLIENT_CREDENTIALS, Deployments, Target
from treadle.gateway.exchange import Exchange
from treadle.gateway.gate import Gate
from treadle.gateway.hosting import runs_here
from treadle.gateway.passthrough import Elsewhere, Passage
from treadle.gateway.refusals import Refused
from treadle.gateway.translation import translate
from treadle.hosted.host import Host
from treadle.telemetry import record
from treadle.wire.json_text import dumps

COUNT_TOKENS = "/count_tokens"

# Names that a library or a server behind this one reads as where to send a request, and as whom.
_TRANSPORT = CLIENT_CREDENTIALS | {
    *("api_version", "api_type", "extra_headers", "extra_body", "custom_llm_provider", "model_list"),
    *("azure_ad_token", "azure_username", "azure_password", "tenant_id", "client_id", "client_secret"),
    *("user_config", "litellm_params", "litellm_credential_name", "organization", "region_name"),
    *("proxy", "ssl_verify", "ssl_certificate", "headers", "client", "fallbacks", "mock_response"),
}
_TRANSPORT_PREFIXES = ("aws_", "vertex_")
_MEDIA_TOKENS = 1_500
"""Of an image or a document, about: what its bytes say of it is nothing."""


async def answer(exchange: Exchange, gate: Gate, deployments: Deployments, host: Host | None) -> None:
    """Answer a request to a model."""
    targets = await _admitted(exchange, gate, deployments)
    exchange.watch()
    for place, target in enumerate(targets):
        is_last = place == len(targets) - 1
        exchange.target = target
        ours = host if host and runs_here(exchange.raw, exchange.body.values, target) else None
        if target.wire == exchange.wire and ours is None:
            try:
                await Passage(exchange, target, is_last).go()
            except Elsewhere:
                continue
            return
        try:
            await translate(exchange, target, ours)
        except ModelError as error:
            if is_last or exchange.started or exchange.usage.calls or not _may_pass(error):
                raise
            record("fell back", {"model": target.model, "status": error.status})
            continue
        return


async def count_tokens(exchange: Exchange, gate: Gate, deployments: Deployments, _: Host | None) -> None:
    """Tokens of a request of Messages: by the upstream that counts them, or estimated."""
    targets = await _admitted(exchange, gate, deployments)
    exchange.watch()
    counting = [target for target in targets if target.wire == "anthropic_messages"]
    for place, target in enumerate(counting):
        exchange.target = target
        try:
            await Passage(exchange, target, place == len(counting) - 1, COUNT_TOKENS).go()
        except Elsewhere:
            continue
        return
    body = dumps({"input_tokens": estimated(exchange.body.values)}).encode("ascii")
    headers = [(b"content-type", b"application/json"), *exchange.own_headers()]
    await exchange.whole(200, [*headers, (b"x-treadle-estimated", b"true")], body)


async def _admitted(exchange: Exchange, gate: Gate, deployments: Deployments) -> tuple[Target, ...]:
    await exchange.read(gate)
    assert exchange.principal is not None
    values = exchange.body.values
    given = {
        name: value
        for name, value in values.items()
        if value is not None and (name in _TRANSPORT or name.startswith(_TRANSPORT_PREFIXES))
    }
    targets = deployments.targets(exchange.model, given)
    if not isinstance(values.get("messages"), list):
        raise Refused("'messages' must be a list", param="messages")
    await gate.admit(exchange.principal, exchange.model)
    return targets


def _may_pass(error: ModelError) -> bool:
    """Whether another upstream may have an answer."""
    if error.status is None:
        return isinstance(error, ModelUnavailable)
    return error.status == 429 or error.status >= 500


def estimated(body: Mapping[str, Any]) -> int:
    """About how many tokens a request of Messages is: a quarter of its bytes, and a lump for each image."""
    counted = {name: body[name] for name in ("system", "messages", "tools") if name in body}
    media = 0

    def without_media(value: object) -> object:
        nonlocal media
        if isinstance(value, list):
            return [without_media(each) for each in cast("list[object]", value)]
        if not isinstance(value, dict):
            return value
        known = cast("dict[str, object]", value)
        if known.get("type") in ("image", "document") and "source" in known:
            media += 1
            return None
        return {name: without_media(inner) for name, inner in known.items()}

    try:
        text = dumps(without_media(counted))
    except RecursionError:
        raise Refused("the body is nested too deeply") from None
    return max(1, math.ceil(len(text) / BYTES_PER_TOKEN) + media * _MEDIA_TOKENS)
