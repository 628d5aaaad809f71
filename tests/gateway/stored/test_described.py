"""What the routes say of themselves, for the description of the server."""

import json
import re

from starlette.routing import Route

from treadle.gateway import file_routes, skill_routes
from treadle.gateway.files import Files
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.gateway.openapi import description
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


def test_each_parameter_of_a_path_is_described_beside_those_of_the_query() -> None:
    paths = description(every_route(), ())["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            said = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert said == set(re.findall(r"\{(\w+)\}", path)), path
    listed = paths["/v1/skills/{skill_id}/versions"]["get"]["parameters"]
    assert {each["in"] for each in listed} == {"path", "query"}
