"""A callback for a LiteLLM proxy: writes down each call that it logs."""

import json
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger  # pyright: ignore


class Recorder(CustomLogger):  # pyright: ignore
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
        with Path(__file__).with_name("events.jsonl").open("a") as events:  # noqa: ASYNC230
            events.write(json.dumps(line) + "\n")


instance = Recorder()
