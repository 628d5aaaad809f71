"""Guardrails of a proxy."""

import json
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_guardrail import CustomGuardrail


class Masks(CustomGuardrail):
    """Hides a word from models, and one from clients."""

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: Any) -> Any:
        return {**data, "messages": json.loads(json.dumps(data["messages"]).replace("Rosebud", "[masked]"))}

    async def async_post_call_success_hook(self, data: Any, user_api_key_dict: Any, response: Any) -> Any:
        if isinstance(response, dict):
            return json.loads(json.dumps(response).replace("Xanadu", "[hidden]"))
        return type(response)(**json.loads(response.model_dump_json().replace("Xanadu", "[hidden]")))

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: Any
    ) -> Any:
        with Path(__file__).with_name("streamed").open("w") as seen:
            async for chunk in response:
                seen.write(str(chunk))
                yield chunk


class Blocks(CustomGuardrail):
    """Lets nothing pass that has a word."""

    async def async_moderation_hook(self, data: Any, user_api_key_dict: Any, call_type: Any) -> None:
        if "Kanedum" in json.dumps(data["messages"]):
            raise HTTPException(400, "the word is not to be said")
