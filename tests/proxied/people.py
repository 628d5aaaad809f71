"""Whose a key is, where the proxy has no database of keys: its `custom_auth`."""

from typing import Any

from litellm.proxy._types import UserAPIKeyAuth

PEOPLE: dict[str, dict[str, Any]] = {
    "sk-alice": {"user_id": "alice"},
    "sk-alice-in-red": {"user_id": "alice", "team_id": "red"},
    "sk-bob-in-red": {"user_id": "bob", "team_id": "red", "org_id": "acme"},
    "sk-of-acme": {"org_id": "acme"},
    "sk-alone": {},
    "sk-limited-openai": {"rpm_limit": 2, "max_parallel_requests": 1},
    "sk-limited-anthropic": {"rpm_limit": 2, "max_parallel_requests": 1},
    "sk-admin": {"user_id": "admin", "user_role": "proxy_admin"},
}


async def known(request: Any, api_key: str) -> UserAPIKeyAuth:
    return UserAPIKeyAuth(api_key=api_key, **PEOPLE[api_key])
