"""Callbacks for a LiteLLM proxy: what it logs is written down, and its own store of skills knows one skill.

That store would be a database of its own; all else of LiteLLM's hook is as it is.
"""

import json
from pathlib import Path
from typing import Any

from litellm.integrations.custom_guardrail import CustomGuardrail
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import LiteLLM_SkillsTable
from litellm.proxy.hooks.litellm_skills.main import SkillsInjectionHook

HERE = Path(__file__).parent


class Recorder(CustomLogger):
    async def async_log_success_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        logged = kwargs["standard_logging_object"]
        line = {
            "call_type": logged["call_type"],
            "key": logged["metadata"]["user_api_key_hash"],
            "tokens": logged["total_tokens"],
            "cost": logged["response_cost"],
            "spend": logged["metadata"].get("spend_logs_metadata"),
        }
        with (HERE / "events.jsonl").open("a") as events:
            events.write(json.dumps(line) + "\n")


async def _known(self: Any, skill_id: str, user_api_key_dict: Any) -> Any:
    archive = (HERE / "gif-maker.zip").read_bytes()
    return LiteLLM_SkillsTable(
        skill_id=skill_id, display_title="GIFs", file_content=archive, file_name="g.zip"
    )


SkillsInjectionHook._fetch_skill_from_db = _known


class Masks(CustomGuardrail):
    """Hides a word from models, and one from clients."""

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: Any) -> Any:
        return {**data, "messages": json.loads(json.dumps(data["messages"]).replace("Rosebud", "[masked]"))}

    async def async_post_call_success_hook(self, data: Any, user_api_key_dict: Any, response: Any) -> Any:
        if isinstance(response, dict):
            return json.loads(json.dumps(response).replace("Xanadu", "[hidden]"))
        return type(response)(**json.loads(response.model_dump_json().replace("Xanadu", "[hidden]")))


instance = Recorder()
