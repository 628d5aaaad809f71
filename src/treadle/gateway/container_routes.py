"""`/v1/containers`: what runs for a key, and how to end it."""

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
        data = [_container(place) for place in host.places(owner(request.state.principal))]
        return JSONResponse({"data": data, "has_more": False})

    async def show(request: Request) -> Response:
        """What is known of a container."""
        return JSONResponse(_container(host.find(*_named(request))))

    async def delete(request: Request) -> Response:
        """End a container, and what runs in it."""
        container_id, who = _named(request)
        await host.end(host.find(container_id, who))
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
    return {
        "id": made.id,
        "type": "container",
        "status": "running" if made.is_busy else "idle",
        "expires_at": made.expires_at.isoformat(),
        "skills": sorted(made.shown),
    }
