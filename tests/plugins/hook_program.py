"""What a hook does with a request that never comes back to it; run where LiteLLM is, with a URL and an id."""

import asyncio
import gc
import json
import sys
import weakref
from typing import Any

from treadle.plugins.litellm_proxy import SkillsInjectionHook

URL, SKILL = sys.argv[1:]


class Request:
    """In the place of LiteLLM's object for the log of a request."""


class Identity:
    token: str | None = "hash"
    api_key: str | None = None
    user_id: str | None = "me"
    team_id: str | None = None
    org_id: str | None = None


async def main() -> None:
    hook, told = SkillsInjectionHook(database_url=URL), dict[str, Any]()
    request = Request()
    data = {
        "model": "group",
        "messages": [{"role": "user", "content": "Go."}],
        "container": {"skills": [{"skill_id": SKILL}]},
        "litellm_logging_obj": request,
    }
    try:
        told["tools"] = len((await hook.async_pre_call_hook(Identity(), None, data, "acompletion"))["tools"])
    except Exception as error:
        known: Any = error
        told |= {"code": known.code, "message": known.message, "headers": known.headers}
    gone = weakref.ref(request)
    del request, data
    gc.collect()
    told["kept"] = gone() is not None
    print(json.dumps(told))  # noqa: T201


asyncio.run(main())
