"""A callback for a LiteLLM proxy, beside whose configuration it is copied: what is logged is written down."""

import json
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger


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
            "tags": logged["request_tags"],
            "metadata": logged["metadata"]["spend_logs_metadata"],
            "whole": str(logged),
        }
        with Path(__file__).with_name("events.jsonl").open("a") as events:
            events.write(json.dumps(line) + "\n")


instance = Recorder()
