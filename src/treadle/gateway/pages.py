"""The routes that need no model: what models there are, health, and what the server can do."""

import html
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from treadle.gateway.deployments import Deployments
from treadle.gateway.gate import Principal
from treadle.gateway.openapi import description
from treadle.gateway.refusals import NotFound

PUBLIC = frozenset({"/health/live", "/health/ready", "/docs", "/openapi.json"})
"""Paths that need no key."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Treadle gateway</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top }}
code {{ font-family: ui-monospace, monospace }}
</style></head><body><h1>Treadle gateway</h1>
<p>The same as OpenAPI 3.1: <a href="/openapi.json">/openapi.json</a>. Send your key as
<code>Authorization: Bearer KEY</code> or <code>x-api-key: KEY</code>.</p>
<table><thead><tr><th>Method</th><th>Path</th><th></th></tr></thead><tbody>
{rows}
</tbody></table></body></html>
"""


def model_routes(deployments: Deployments) -> list[Route]:
    """`GET /v1/models`, in the shape of whichever API the client speaks."""
    since = int(time.time())

    def written(name: str, request: Request) -> dict[str, object]:
        if "anthropic-version" in request.headers:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
            return {"type": "model", "id": name, "display_name": name, "created_at": at}
        return {"id": name, "object": "model", "created": since, "owned_by": "treadle"}

    async def list_models(request: Request) -> Response:
        """The models that the key may use."""
        principal: Principal = request.state.principal
        models = [written(name, request) for name in deployments.visible(principal)]
        if "anthropic-version" not in request.headers:
            return JSONResponse({"object": "list", "data": models})
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
        ends = ends or {"first_id": None, "last_id": None}
        return JSONResponse({"data": models, "has_more": False, **ends})

    async def get_model(request: Request) -> Response:
        """One model that the key may use."""
        name: str = request.path_params["model"]
        principal: Principal = request.state.principal
        if principal.models and name not in principal.models:
            raise NotFound(f"there is no model {name[:200]!r}", param="model")
        if name not in deployments.visible(principal):
            deployments.targets(name)
        return JSONResponse(written(name, request))

    both: list[Route] = []
    for prefix in ("/v1", ""):
        both += [
            Route(f"{prefix}/models", list_models, methods=["GET"]),
            Route(f"{prefix}/models/{{model:path}}", get_model, methods=["GET"]),
        ]
    return both


def page_routes(routes: Sequence[Route], is_ready: Callable[[], bool]) -> list[Route]:
    """Health, and the description of `routes` and of the hot ones."""

    async def live(request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> Response:
        """Whether it takes requests."""
        if is_ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "stopping"}, 503)

    async def openapi(request: Request) -> Response:
        """This description."""
        return JSONResponse(described)

    async def docs(request: Request) -> Response:
        """The routes, for people."""
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return HTMLResponse(page, headers={"content-security-policy": policy})

    own = [
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/docs", docs, methods=["GET"]),
    ]
    described = description([*routes, *own], PUBLIC)
    page = _PAGE.format(rows="\n".join(_rows(described)))
    return own


def _rows(described: dict[str, Any]) -> list[str]:
    rows: list[str] = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            cells = (method.upper(), f"<code>{html.escape(path)}</code>", html.escape(operation["summary"]))
            rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return rows
