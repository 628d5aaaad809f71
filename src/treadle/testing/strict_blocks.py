"""What a content block of a Messages request may hold, by its type.

Source: the request types of the `anthropic` package, version 2, and the id patterns in the API's description.
"""

from collections.abc import Mapping

from treadle.testing.strict_shapes import (
    Array,
    Boolean,
    Dictionary,
    Either,
    Nullable,
    Object,
    Shape,
    String,
    Tagged,
    Word,
    integer,
)

TOOL_USE_ID = String(low=1, pattern="^[a-zA-Z0-9_-]+$")
SERVER_TOOL_USE_ID = String(low=1, pattern="^srvtoolu_[a-zA-Z0-9_]+$")

CACHE_CONTROL = Nullable(Tagged({"ephemeral": Object({}, {"ttl": Word("5m", "1h")})}))
_CACHED: Mapping[str, Shape] = {"cache_control": CACHE_CONTROL}

CALLERS: Mapping[str, Object] = {
    "direct": Object(),
    "code_execution_20250825": Object({"tool_id": SERVER_TOOL_USE_ID}),
    "code_execution_20260120": Object({"tool_id": SERVER_TOOL_USE_ID}),
}
_CALLED: Mapping[str, Shape] = {"caller": Nullable(Tagged(CALLERS))}


def _located(unit: str) -> Object:
    """A citation of a document. Replies carry a `file_id` in it, and may be sent back."""
    return Object(
        {
            "cited_text": String(),
            "document_index": integer(0),
            "document_title": Nullable(String()),
            f"start_{unit}": integer(0),
            f"end_{unit}": integer(0),
        },
        {"file_id": Nullable(String())},
    )


CITATIONS: Mapping[str, Object] = {
    "char_location": _located("char_index"),
    "page_location": _located("page_number"),
    "content_block_location": _located("block_index"),
    "web_search_result_location": Object(
        {
            "cited_text": String(),
            "encrypted_index": String(),
            "title": Nullable(String()),
            "url": String(),
        }
    ),
    "search_result_location": Object(
        {
            "cited_text": String(),
            "search_result_index": integer(0),
            "source": String(),
            "start_block_index": integer(0),
            "end_block_index": integer(0),
            "title": Nullable(String()),
        }
    ),
}

TEXT = Object({"text": String()}, {**_CACHED, "citations": Nullable(Array(Tagged(CITATIONS)))})
TEXT_ONLY = Object({"type": Word("text"), **TEXT.required}, TEXT.optional)
"""A text block where no other kind is possible: its type is an ordinary field there."""

IMAGE_SOURCES: Mapping[str, Object] = {
    "base64": Object(
        {"data": String(low=1), "media_type": Word("image/jpeg", "image/png", "image/gif", "image/webp")}
    ),
    "url": Object({"url": String(low=1)}),
    "file": Object({"file_id": String(low=1)}),
}
IMAGE = Object(
    {"source": Tagged(IMAGE_SOURCES)},
    {
        **_CACHED,
        "transformations": Nullable(Object({}, {"oversized_image": Word("downsize", "error")})),
    },
)

DOCUMENT_SOURCES: Mapping[str, Object] = {
    "base64": Object({"data": String(low=1), "media_type": Word("application/pdf")}),
    "text": Object({"data": String(), "media_type": Word("text/plain")}),
    "content": Object({"content": Either(String(), Array(Tagged({"text": TEXT, "image": IMAGE})))}),
    "url": Object({"url": String(low=1)}),
    "file": Object({"file_id": String(low=1)}),
}
_CITED = Object({}, {"enabled": Boolean()})
DOCUMENT = Object(
    {"source": Tagged(DOCUMENT_SOURCES)},
    {
        **_CACHED,
        "citations": Nullable(_CITED),
        "context": Nullable(String()),
        "title": Nullable(String()),
    },
)
SEARCH_RESULT = Object(
    {"content": Array(TEXT_ONLY), "source": String(), "title": String()}, {**_CACHED, "citations": _CITED}
)
TOOL_REFERENCE = Object({"tool_name": String(low=1)}, _CACHED)

_DOWNLOAD: Mapping[str, Shape] = {"download_id": String(), "url": String()}
BROWSER_CHANGES: Mapping[str, Object] = {
    "tab_opened": Object({"tab_id": String()}),
    "download_started": Object(_DOWNLOAD),
    "download_completed": Object(_DOWNLOAD, {"path": Nullable(String()), "size_bytes": Nullable(integer(0))}),
    "download_failed": Object(_DOWNLOAD, {"error": Nullable(String())}),
}
BROWSER_STATE = Object(
    {"tabs": Array(Object({"tab_id": String(), "title": String(), "url": String()}, {"active": Boolean()}))},
    {**_CACHED, "state_changes": Nullable(Array(Tagged(BROWSER_CHANGES)))},
)

RESULT_PARTS: Mapping[str, Object] = {
    "text": TEXT,
    "image": IMAGE,
    "search_result": SEARCH_RESULT,
    "document": DOCUMENT,
    "tool_reference": TOOL_REFERENCE,
    "browser_state": BROWSER_STATE,
}


def _failed(*codes: str, explained: bool = False) -> Object:
    return Object({"error_code": Word(*codes)}, {"error_message": Nullable(String())} if explained else {})


_TOOL_FAILURES = ("invalid_tool_input", "unavailable", "too_many_requests", "execution_time_exceeded")


def _ran(output: str, files: str, **extra: Shape) -> Object:
    file = Object({"type": Word(files), "file_id": String(low=1)})
    return Object(
        {output: String(), "stderr": String(), "return_code": integer(), "content": Array(file)}, extra
    )


_EDITED = {key: Nullable(integer()) for key in ("old_start", "old_lines", "new_start", "new_lines")}

SERVER_RESULTS: Mapping[str, Mapping[str, Object]] = {
    "code_execution_tool_result": {
        # The 2025-05-22 tool is recorded with a further `abort_reason: null`.
        "code_execution_result": _ran("stdout", "code_execution_output", abort_reason=Nullable(String())),
        "encrypted_code_execution_result": _ran("encrypted_stdout", "code_execution_output"),
        "code_execution_tool_result_error": _failed(*_TOOL_FAILURES),
    },
    "bash_code_execution_tool_result": {
        "bash_code_execution_result": _ran("stdout", "bash_code_execution_output"),
        "bash_code_execution_tool_result_error": _failed(*_TOOL_FAILURES, "output_file_too_large"),
    },
    "text_editor_code_execution_tool_result": {
        "text_editor_code_execution_view_result": Object(
            {"content": String(), "file_type": Word("text", "image", "pdf")},
            {key: Nullable(integer()) for key in ("num_lines", "start_line", "total_lines")},
        ),
        "text_editor_code_execution_create_result": Object({"is_file_update": Boolean()}),
        "text_editor_code_execution_str_replace_result": Object(
            {}, {**_EDITED, "lines": Nullable(Array(String()))}
        ),
        "text_editor_code_execution_tool_result_error": _failed(
            *_TOOL_FAILURES, "file_not_found", explained=True
        ),
    },
    "tool_search_tool_result": {
        "tool_search_tool_search_result": Object(
            {"tool_references": Array(Tagged({"tool_reference": TOOL_REFERENCE}))}
        ),
        "tool_search_tool_result_error": _failed(*_TOOL_FAILURES, explained=True),
    },
    "web_fetch_tool_result": {
        "web_fetch_result": Object(
            {"content": Tagged({"document": DOCUMENT}), "url": String()},
            {"retrieved_at": Nullable(String())},
        ),
        "web_fetch_tool_result_error": _failed(
            *("invalid_tool_input", "url_too_long", "url_not_allowed", "url_not_in_prior_context"),
            *("url_not_accessible", "unsupported_content_type", "too_many_requests"),
            *("max_uses_exceeded", "unavailable", "content_too_large"),
        ),
    },
    "web_search_tool_result": {
        "web_search_tool_result_error": _failed(
            *("invalid_tool_input", "unavailable", "max_uses_exceeded"),
            *("too_many_requests", "query_too_long", "request_too_large"),
        ),
    },
}
"""The contents of each kind of server tool result that are told apart by their type."""

WEB_SEARCH_FOUND = Object(
    {"encrypted_content": String(), "title": String(), "url": String()}, {"page_age": Nullable(String())}
)


def _server_result(kind: str) -> Object:
    content: Shape = Tagged(SERVER_RESULTS[kind])
    if kind == "web_search_tool_result":
        content = Either(Array(Tagged({"web_search_result": WEB_SEARCH_FOUND})), content)
    optional = {**_CACHED, **_CALLED} if kind.startswith("web_") else _CACHED
    return Object({"tool_use_id": SERVER_TOOL_USE_ID, "content": content}, optional)


SERVER_TOOL_NAMES = (
    *("web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution"),
    *("tool_search_tool_regex", "tool_search_tool_bm25"),
)

BLOCKS: Mapping[str, Object] = {
    "text": TEXT,
    "image": IMAGE,
    "document": DOCUMENT,
    "search_result": SEARCH_RESULT,
    "thinking": Object({"signature": String(), "thinking": String()}),
    "redacted_thinking": Object({"data": String()}),
    "tool_use": Object(
        {"id": TOOL_USE_ID, "name": String(low=1, high=200), "input": Dictionary()},
        {**_CACHED, **_CALLED, "toolset_name": Nullable(String())},
    ),
    "tool_result": Object(
        {"tool_use_id": TOOL_USE_ID},
        {
            **_CACHED,
            "content": Either(String(), Array(Tagged(RESULT_PARTS))),
            "is_error": Boolean(),
            "toolset_name": Nullable(String()),
        },
    ),
    "server_tool_use": Object(
        {"id": SERVER_TOOL_USE_ID, "name": Word(*SERVER_TOOL_NAMES), "input": Dictionary()},
        {**_CACHED, **_CALLED},
    ),
    **{kind: _server_result(kind) for kind in SERVER_RESULTS},
    "container_upload": Object({"file_id": String(low=1)}, _CACHED),
    "mcp_tool_use": Object(
        {"id": TOOL_USE_ID, "name": String(), "server_name": String(), "input": Dictionary()}, _CACHED
    ),
    "mcp_tool_result": Object(
        {"tool_use_id": TOOL_USE_ID},
        {**_CACHED, "content": Either(String(), Array(TEXT_ONLY)), "is_error": Boolean()},
    ),
}

USER_ONLY = frozenset({"image", "document", "tool_result"})
ASSISTANT_ONLY = frozenset(
    {
        *("thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result"),
        *SERVER_RESULTS,
    }
)

MESSAGE = Object(
    {
        "role": Word("user", "assistant", "system"),
        "content": Either(String(), Array(Tagged(BLOCKS))),
    }
)
