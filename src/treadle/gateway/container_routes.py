"""`/v1/containers`: what runs for a key, and how to end it."""

from collections.abc import Iterable
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from treadle.gateway.files import owner
from treadle.gateway.stored_routes import route
from treadle.hosted.host import Host, Place


def routes(host: Host) -> list[Route]:
    """Containers of the principal; those of others are not there."""

    async def listing(request: Request) -> Response:
        """List containers."""
        who = owner(request.state.principal)
        here = [_container(place) for place in host.places(who)]
        kept = [_told(each.id, "idle", each.until, each.skills) for each in await host.kept(who)]
        return JSONResponse({"data": [*here, *kept], "has_more": False})

    async def show(request: Request) -> Response:
        """What is known of a container."""
        container_id, who = _named(request)
        for each in await host.kept(who):
            if each.id == container_id:
                return JSONResponse(_told(each.id, "idle", each.until, each.skills))
        return JSONResponse(_container(host.find(container_id, who)))

    async def delete(request: Request) -> Response:
        """End a container, and what runs in it."""
        container_id, who = _named(request)
        await host.delete(container_id, who)
        return JSONResponse({"id": container_id, "type": "container_deleted"})

    return [
        route("GET", "/v1/containers", listing),
        route("GET", "/v1/containers/{container_id}", show),
        route("DELETE", "/v1/containers/{container_id}", delete),
    ]


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["container_id"], owner(request.state.principal)


def _container(place: Place) -> dict[str, object]:
    made = place.container
    status = "running" if made.is_busy else "idle"
    return _told(made.id, status, made.expires_at.timestamp(), made.shown)


def _told(id_: str, status: str, until: float, skills: Iterable[str]) -> dict[str, object]:
    return {
        "id": id_,
        "type": "container",
        "status": status,
        "expires_at": datetime.fromtimestamp(until, UTC).isoformat(),
        "skills": sorted(skills),
    }
