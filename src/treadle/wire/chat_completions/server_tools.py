"""What a provider's own tools did, under LiteLLM's names for it: made of the blocks, and never read back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from treadle.wire.json_text import dumps

Raw = Mapping[str, Any]

_ELSEWHERE = frozenset({"web_search_tool_result", "web_fetch_tool_result", "mcp_tool_result"})
"""Results that are not in `tool_results`."""
_CODE = frozenset({"code_execution_tool_result", "bash_code_execution_tool_result"})


def server_tool_fields(blocks: Sequence[Raw], container: object) -> dict[str, object]:
    """`server_tool_calls`, `tool_results` and `code_interpreter_results` of a message, where it has them."""
    uses = [block for block in blocks if block.get("type") == "server_tool_use"]
    results = [block for block in blocks if _is_result(str(block.get("type")))]
    fields: dict[str, list[Any]] = {
        "server_tool_calls": list(map(_call, uses)),
        "tool_results": results,
        "code_interpreter_results": list(_outputs(results, uses, _object(container).get("id"))),
    }
    return {name: listed for name, listed in fields.items() if listed}


def _is_result(kind: str) -> bool:
    return kind.endswith("_tool_result") and kind not in _ELSEWHERE


def _call(use: Raw) -> dict[str, object]:
    function = {"name": use.get("name"), "arguments": dumps(use.get("input") or {})}
    made = {"caller": use["caller"]} if "caller" in use else {}
    return {"id": use.get("id"), "type": "function", "function": function, **made}


def _outputs(results: Iterable[Raw], uses: Iterable[Raw], container: object) -> Iterator[dict[str, object]]:
    """Runs of code as the Responses API has them; the code is null where an earlier message has it."""
    inputs = {str(use.get("id")): _object(use.get("input")) for use in uses}
    for result in results:
        if result.get("type") not in _CODE:
            continue
        said = inputs.get(str(result.get("tool_use_id")), {})
        content = _object(result.get("content"))
        failed = str(content.get("type")).endswith("_error")
        yield {
            "type": "code_interpreter_call",
            "id": result.get("tool_use_id"),
            "code": said.get("code") or said.get("command"),
            "container_id": container,
            "status": "failed" if failed else "completed",
            "outputs": _logs(content),
        }


def _logs(content: Raw) -> list[dict[str, str]] | None:
    stderr = content.get("stderr")
    logs = f"{content.get('stdout') or ''}{f'STDERR: {stderr}' if stderr else ''}"
    return [{"type": "logs", "logs": logs}] if logs else None


def _object(value: object) -> Raw:
    return cast("Raw", value) if isinstance(value, Mapping) else {}
