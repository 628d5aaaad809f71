"""`/v1/skills`, as the Anthropic package speaks it."""

import re
from asyncio import Semaphore
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from treadle.gateway.files import owner
from treadle.gateway.gate import Principal
from treadle.gateway.key_routes import moment
from treadle.gateway.refusals import Forbidden, Refused
from treadle.gateway.skill_forms import received
from treadle.gateway.stored_routes import route
from treadle.skills.needs import warnings
from treadle.skills.package import Package
from treadle.skills.records import Skill, Version
from treadle.skills.store import EVERYBODY, MAX_DISPLAY_NAME_CHARS, Reader, Skills

OLD_SHAPES = "skills-2025-10-02"
"""The beta header that asks for the older shapes."""
MAX_OLD_LIMIT = 100
MAX_FOUND = 100
"""Skills that a search gives."""
AT_ONCE = 4
"""Uploads that are unpacked and stored at the same time: each may take 100 MiB of memory."""

_PAGE = re.compile(r"page_([0-9]{1,18})", re.ASCII)
_TEAM = re.compile(r"team:.{1,256}")


class _Listing(BaseModel):
    model_config = ConfigDict(extra="ignore")
    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    page: str | None = None


_L = TypeVar("_L", bound=_Listing)


class _SkillListing(_Listing):
    source: str | None = None
    query: Annotated[str, Field(max_length=10_000)] | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_FOUND)] | None = None


_FILES: dict[str, Any] = {"files[]": {"type": "array", "items": {"type": "string", "format": "binary"}}}
_NEW: dict[str, Any] = {
    **_FILES,
    "display_name": {"type": "string", "maxLength": MAX_DISPLAY_NAME_CHARS},
    "shared_with": {"type": "string"},
}


def routes(skills: Skills) -> list[Route]:
    """Skills of the principal, and those that are shared with it."""
    working = Semaphore(AT_ONCE)

    async def create(request: Request) -> Response:
        """Store a new skill."""
        who: Principal = request.state.principal
        async with received(request) as form, working:
            shared_with = _shared_with(who, form.texts.get("shared_with"))
            named = form.texts.get("display_name") or form.texts.get("display_title")
            package = await run_sync(form.package)
            skill = await skills.create(
                reader(who).owner, package, display_name=named, shared_with=shared_with
            )
        return JSONResponse({**_skill(request, skill), **await _warnings(package)})

    async def listing(request: Request) -> Response:
        """List skills, the newest first, or search them."""
        asked = _checked(_SkillListing, request)
        of = reader(request.state.principal)
        if asked.source not in (None, "custom"):  # there are no others here
            return JSONResponse(_page(request, [], more=False))
        if asked.query is not None:
            found = await skills.search(of, asked.query, limit=asked.top_k or min(asked.limit, MAX_FOUND))
            told = [{**_skill(request, skill), "search_score": round(score, 4)} for skill, score in found]
            return JSONResponse(_page(request, told, more=False))
        rows, more = await skills.page(of, limit=_limit(request, asked), before=_before(asked))
        last = rows[-1].number if rows else 0
        return JSONResponse(_page(request, [_skill(request, skill) for skill in rows], more=more, last=last))

    async def show(request: Request) -> Response:
        """What is known of a skill."""
        skill = await skills.get(reader(request.state.principal), request.path_params["skill_id"])
        return JSONResponse(_skill(request, skill))

    async def delete(request: Request) -> Response:
        """Remove a skill with all its versions."""
        skill_id: str = request.path_params["skill_id"]
        await skills.delete(reader(request.state.principal), skill_id)
        return JSONResponse({"id": skill_id, "type": "skill_deleted"})

    return [
        route("POST", "/v1/skills", create, form=_NEW),
        route("GET", "/v1/skills", listing, query=_SkillListing),
        route("GET", "/v1/skills/{skill_id}", show),
        route("DELETE", "/v1/skills/{skill_id}", delete),
        *_version_routes(skills, working),
    ]


def _version_routes(skills: Skills, working: Semaphore) -> list[Route]:
    async def create(request: Request) -> Response:
        """Store a new version of a skill."""
        of, skill_id = reader(request.state.principal), request.path_params["skill_id"]
        async with received(request) as form, working:
            package = await run_sync(form.package)
            version = await skills.add(of, skill_id, package)
        return JSONResponse({**_version(request, version), **await _warnings(package)})

    async def listing(request: Request) -> Response:
        """List the versions of a skill, the newest first."""
        asked = _checked(_Listing, request)
        of, skill_id = reader(request.state.principal), request.path_params["skill_id"]
        rows, more = await skills.versions(of, skill_id, limit=_limit(request, asked), before=_before(asked))
        last = rows[-1].number if rows else 0
        return JSONResponse(_page(request, [_version(request, row) for row in rows], more=more, last=last))

    async def found(request: Request) -> Version:
        named = request.path_params
        return await skills.version(reader(request.state.principal), named["skill_id"], named["version"])

    async def show(request: Request) -> Response:
        """What is known of a version."""
        return JSONResponse(_version(request, await found(request)))

    async def content(request: Request) -> Response:
        """The archive of a version, ZIP."""
        version = await found(request)
        headers = {
            "content-disposition": f'attachment; filename="{version.name}.zip"',
            "x-content-type-options": "nosniff",
        }
        return StreamingResponse(skills.archive(version), media_type="application/zip", headers=headers)

    async def delete(request: Request) -> Response:
        """Remove a version."""
        of, named = reader(request.state.principal), request.path_params
        is_old = _is_old(request)  # they had to remove every version before the skill
        gone = await skills.delete_version(of, named["skill_id"], named["version"], may_empty=is_old)
        gone_id = str(gone.microseconds) if is_old else gone.id
        return JSONResponse({"id": gone_id, "type": "skill_version_deleted"})

    path = "/v1/skills/{skill_id}/versions"
    return [
        route("POST", path, create, form=_FILES),
        route("GET", path, listing, query=_Listing),
        route("GET", f"{path}/{{version}}", show),
        route("GET", f"{path}/{{version}}/content", content),
        route("DELETE", f"{path}/{{version}}", delete),
    ]


def reader(principal: Principal) -> Reader:
    """Who a principal is for the store: as for files, but keys of an organisation alone share its skills."""
    of = owner(principal)
    if of == f"key:{principal.key_id}" and principal.organisation:
        of = f"organization:{principal.organisation}"
    teams = (f"team:{principal.team}",) if principal.team else ()
    return Reader(of, (EVERYBODY, *teams))


async def _warnings(package: Package) -> dict[str, object]:
    found = await run_sync(warnings, package)
    return {"warnings": found} if found else {}


def _shared_with(who: Principal, wanted: str | None) -> str | None:
    if not wanted:
        return None
    if wanted != EVERYBODY and not (_TEAM.fullmatch(wanted) and wanted.isprintable()):
        raise Refused("shared_with: give `all` or `team:` and the team_id of a team", param="shared_with")
    if not who.is_admin and wanted != f"team:{who.team}":
        raise Forbidden("shared_with: only the admin shares a skill with others", param="shared_with")
    return wanted


def _checked(shape: type[_L], request: Request) -> _L:
    try:
        return shape.model_validate(dict(request.query_params))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = str(first["loc"][0])
        raise Refused(f"{where}: {first['msg']}", param=where) from None


def _before(asked: _Listing) -> int | None:
    if asked.page is None:
        return None
    if (page := _PAGE.fullmatch(asked.page)) is None:
        raise Refused("page: give the `next_page` of an earlier answer", param="page")
    return int(page[1])


def _limit(request: Request, asked: _Listing) -> int:
    return min(asked.limit, MAX_OLD_LIMIT) if _is_old(request) else asked.limit


def _is_old(request: Request) -> bool:
    named = ",".join(request.headers.getlist("anthropic-beta")).split(",")
    return OLD_SHAPES in map(str.strip, named)


def _page(request: Request, data: list[dict[str, object]], *, more: bool, last: int = 0) -> dict[str, object]:
    has_more = {"has_more": more} if _is_old(request) else {}
    return {"data": data, **has_more, "next_page": f"page_{last}" if more else None}


def _skill(request: Request, skill: Skill) -> dict[str, object]:
    latest = skill.latest
    if _is_old(request):
        shape: dict[str, object] = {
            "display_title": skill.display_name,
            "latest_version": None if latest is None else str(latest.microseconds),
            "source": "custom",
        }
    else:
        shape = {
            "display_name": skill.display_name,
            "latest_version_id": None if latest is None else latest.id,
            "source": {"type": "custom"},
        }
    times = {"created_at": moment(skill.created_at), "updated_at": moment(skill.updated_at)}
    return {"id": skill.id, "type": "skill", **shape, **times}


def _version(request: Request, version: Version) -> dict[str, object]:
    old = {"version": str(version.microseconds), "directory": version.name} if _is_old(request) else {}
    return {
        "id": version.id,
        "type": "skill_version",
        "skill_id": version.skill_id,
        **old,
        "name": version.name,
        "description": version.description,
        "created_at": moment(version.created_at),
    }
