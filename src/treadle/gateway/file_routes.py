"""`/v1/files`, as the Anthropic and the OpenAI package speak it."""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from treadle.gateway import multipart
from treadle.gateway.dialects import spoken
from treadle.gateway.files import File, Files, Wanted, owner
from treadle.gateway.key_routes import moment
from treadle.gateway.multipart import Part
from treadle.gateway.refusals import NotFound, Refused, TooLarge
from treadle.gateway.stored_routes import route

OLD_LIST = "files-api-2025-04-14"
"""The beta header that asks for the older shapes."""
MAX_FIELD_BYTES = 4096
MAX_FORM_BYTES = 1 << 20
"""What a form may have besides the file."""
MAX_IDS = 100

_PAGE = re.compile(r"page_([0-9]{1,18})")
_M = TypeVar("_M", bound=BaseModel)


def speaks_openai(request: Request) -> bool:
    """Whether a request to `/v1/files` is one of OpenAI's: its key is a bearer's, and no version is named."""
    return spoken(dict(request.scope["headers"])) == "chat_completions"


class _Listing(BaseModel):
    model_config = ConfigDict(extra="ignore")
    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    page: str | None = None
    after_id: str | None = None
    before_id: str | None = None


class _OpenAIListing(BaseModel):
    model_config = ConfigDict(extra="ignore")
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore")
    expires_in_seconds: Annotated[int, Field(ge=3600, le=7_776_000)] | None = None


class _OpenAIFields(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)
    purpose: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z_-]+$")]
    anchor: Annotated[Literal["created_at"] | None, Field(alias="expires_after[anchor]")] = None
    expires_after: Annotated[
        Annotated[int, Field(ge=3600, le=2_592_000)] | None, Field(alias="expires_after[seconds]")
    ] = None


_FORM: dict[str, Any] = {
    "file": {"type": "string", "format": "binary"},
    "purpose": {"type": "string"},
    **_Fields.model_json_schema()["properties"],
}


def routes(files: Files) -> list[Route]:
    """Files of the principal; which dialect is spoken is the request's choice."""

    async def upload(request: Request) -> Response:
        """Keep a file."""
        limit = files.max_file_bytes + MAX_FORM_BYTES
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            raise TooLarge(f"the file is larger than {files.max_file_bytes} bytes", param="file")
        form = multipart.read(request.stream(), request.headers.get("content-type", ""), max_bytes=limit)
        async with aclosing(form) as parts:
            try:
                file = await _take(files, parts, request)
            except ClientDisconnect:
                raise Refused("the client went away before the file was whole") from None
        return JSONResponse(_told(request, file))

    async def listing(request: Request) -> Response:
        """List files, the newest first."""
        of = owner(request.state.principal)
        make = _openai_list if speaks_openai(request) else _anthropic_list
        return JSONResponse(await make(files, of, request))

    async def metadata(request: Request) -> Response:
        """What is known of a file."""
        file = await files.get(owner(request.state.principal), request.path_params["file_id"])
        return JSONResponse(_told(request, file))

    async def content(request: Request) -> Response:
        """The content of a file."""
        file = await files.get(owner(request.state.principal), request.path_params["file_id"])
        return StreamingResponse(
            files.content(file), media_type=file.mime_type, headers=_download_headers(file)
        )

    async def delete(request: Request) -> Response:
        """Remove a file."""
        file_id: str = request.path_params["file_id"]
        await files.delete(owner(request.state.principal), file_id)
        if speaks_openai(request):
            return JSONResponse({"id": file_id, "object": "file", "deleted": True})
        return JSONResponse({"id": file_id, "type": "file_deleted"})

    return [
        route("POST", "/v1/files", upload, form=_FORM),
        route("GET", "/v1/files", listing, query=_Listing),
        route("GET", "/v1/files/{file_id}", metadata),
        route("GET", "/v1/files/{file_id}/content", content),
        route("DELETE", "/v1/files/{file_id}", delete),
    ]


async def _take(files: Files, parts: AsyncIterator[multipart.Event], request: Request) -> File:
    """Read a form, its file straight into the database."""
    fields: dict[str, bytearray] = {}
    file: Part | None = None
    async with files.upload() as coming:
        part: Part | None = None
        async for event in parts:
            if isinstance(event, Part):
                part = event
                if part.name == "file":
                    if file is not None:
                        raise Refused("the form has more than one file", param="file")
                    file = part
            elif part is file and file is not None:
                await coming.write(event)
            elif part is not None:
                value = fields.setdefault(part.name, bytearray())
                value += event
                if len(value) > MAX_FIELD_BYTES:
                    raise Refused(f"a field is longer than {MAX_FIELD_BYTES} bytes", param=_shown(part.name))
        if file is None:
            raise Refused("the form has no part `file`", param="file")
        texts = {name: value.decode("utf-8", "replace") for name, value in fields.items()}
        return await coming.keep(owner(request.state.principal), _wanted(request, file, texts))


def _shown(name: str) -> str:
    return "".join(filter(str.isprintable, name))[:64]


def _wanted(request: Request, file: Part, texts: dict[str, str]) -> Wanted:
    name, mime_type = file.filename or "", file.content_type
    if not speaks_openai(request):
        fields = _checked(_Fields, texts)
        return Wanted(name, mime_type, expires_in_s=fields.expires_in_seconds)
    wishes = _checked(_OpenAIFields, texts)
    # with OpenAI, who uploaded a file may read it again
    return Wanted(name, mime_type, wishes.purpose, downloadable=True, expires_in_s=wishes.expires_after)


def _checked(shape: type[_M], texts: dict[str, Any]) -> _M:
    try:
        return shape.model_validate(texts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = str(first["loc"][0])
        raise Refused(f"{where}: {first['msg']}", param=where) from None


async def _anthropic_list(files: Files, of: str, request: Request) -> dict[str, object]:
    if ids := [*request.query_params.getlist("ids[]"), *request.query_params.getlist("ids")]:
        return await _named(files, of, request, ids)
    asked = _checked(_Listing, dict(request.query_params))
    limit = asked.limit or 20
    if _is_old(request):
        return await _old_list(files, of, asked, limit)
    before = None
    if asked.page is not None:
        if (page := _PAGE.fullmatch(asked.page)) is None:
            raise Refused("page: give the `next_page` of an earlier answer", param="page")
        before = int(page[1])
    found, more = await files.page(of, limit=limit, before=before)
    next_page = f"page_{found[-1].number}" if more else None
    return {"data": list(map(_anthropic, found)), "next_page": next_page}


async def _named(files: Files, of: str, request: Request, ids: list[str]) -> dict[str, object]:
    if len(set(ids)) > MAX_IDS:
        raise Refused(f"ids: at most {MAX_IDS}", param="ids")
    if request.query_params.keys() & {"page", "limit"}:
        raise Refused("ids: give no `page` and no `limit` with them", param="ids")
    found = await files.named(of, ids)
    return {"data": list(map(_anthropic, found)), "next_page": None}


async def _old_list(files: Files, of: str, asked: _Listing, limit: int) -> dict[str, object]:
    if asked.after_id is not None and asked.before_id is not None:
        raise Refused("give `after_id` or `before_id`, not both", param="after_id")
    if asked.before_id is not None:
        above = await _number(files, of, asked.before_id, "before_id")
        found, more = await files.page(of, limit=limit, after=above, newest=False)
        found.reverse()
    else:
        below = None if asked.after_id is None else await _number(files, of, asked.after_id, "after_id")
        found, more = await files.page(of, limit=limit, before=below)
    return {
        "data": list(map(_old, found)),
        "has_more": more,
        "first_id": found[0].id if found else None,
        "last_id": found[-1].id if found else None,
    }


async def _openai_list(files: Files, of: str, request: Request) -> dict[str, object]:
    asked = _checked(_OpenAIListing, dict(request.query_params))
    newest = asked.order == "desc"
    start = None if asked.after is None else await _number(files, of, asked.after, "after")
    before, after = (start, None) if newest else (None, start)
    found, more = await files.page(
        of, limit=asked.limit, before=before, after=after, newest=newest, purpose=asked.purpose
    )
    return {
        "object": "list",
        "data": list(map(_openai, found)),
        "has_more": more,
        "first_id": found[0].id if found else None,
        "last_id": found[-1].id if found else None,
    }


async def _number(files: Files, of: str, file_id: str, param: str) -> int:
    try:
        return (await files.get(of, file_id)).number
    except NotFound as error:
        raise Refused(f"{param}: {error}", param=param) from None


def _is_old(request: Request) -> bool:
    named = ",".join(request.headers.getlist("anthropic-beta")).split(",")
    return OLD_LIST in map(str.strip, named)


def _told(request: Request, file: File) -> dict[str, object]:
    if speaks_openai(request):
        return _openai(file)
    return _old(file) if _is_old(request) else _anthropic(file)


def _old(file: File) -> dict[str, object]:
    return {
        "id": file.id,
        "type": "file",
        "filename": file.filename,
        "mime_type": file.mime_type,
        "size_bytes": file.size,
        "created_at": moment(file.created_at),
        "downloadable": file.downloadable,
    }


def _anthropic(file: File) -> dict[str, object]:
    return {**_old(file), "expires_at": None if file.expires_at is None else moment(file.expires_at)}


def _openai(file: File) -> dict[str, object]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _download_headers(file: File) -> dict[str, str]:
    """So that a browser saves the file, whatever is in it, and never shows it as a page of ours."""
    return {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        "content-length": str(file.size),
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
    }
