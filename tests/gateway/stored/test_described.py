"""What the routes say of themselves, for the description of the server."""

import json

from starlette.routing import Route

from treadle.gateway import file_routes, skill_routes
from treadle.gateway.files import Files
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.skills.store import Skills
from treadle.storage.database import Database


def every_route() -> list[Route]:
    database = Database("sqlite:///nowhere/x.db")  # nothing is opened
    stored = [*file_routes.routes(Files(database)), *skill_routes.routes(Skills(database))]
    return [*Gatekeeper(database).routes(), *stored]


def test_every_route_says_what_it_does() -> None:
    for route in every_route():
        assert (route.endpoint.__doc__ or "").endswith("."), route.path


def test_bodies_and_parameters_are_described_whole() -> None:
    described = {route.path: getattr(route.endpoint, "openapi", {}) for route in every_route()}

    assert "max_budget" in json.dumps(described["/key/generate"])
    assert {each["name"] for each in described["/spend"]["parameters"]} == {"by", "days"}
    assert "$ref" not in json.dumps(described)  # a reference would lead out of its place in the description
