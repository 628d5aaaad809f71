"""LiteLLM's own store of skills knows one skill.

That store would be a database of its own; all else of LiteLLM's hook is as it is.
"""

from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import LiteLLM_SkillsTable
from litellm.proxy.hooks.litellm_skills.main import SkillsInjectionHook


async def _known(self: Any, skill_id: str, user_api_key_dict: Any) -> Any:
    archive = Path(__file__).with_name("gif-maker.zip").read_bytes()
    return LiteLLM_SkillsTable(
        skill_id=skill_id, display_title="GIFs", file_content=archive, file_name="g.zip"
    )


SkillsInjectionHook._fetch_skill_from_db = _known
instance = CustomLogger()
