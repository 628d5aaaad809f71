"""`/key/...`: making, showing, changing and removing keys, with LiteLLM's names."""

import json
import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from treadle.gateway.gate import Principal
from treadle.gateway.keys import MASTER, Key, Keys, hashed
from treadle.gateway.refusals import Forbidden, NotFound, Refused, TooLarge
from treadle.gateway.stored_routes import route

MAX_BODY_BYTES = 1 << 18
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "mo": 2592000}
_MAX_DURATION_S = 100 * 365 * 86400
_COLUMNS = {"key_alias": "alias"}
"""Where a field of a body is not called as its column."""
_NOTHING: dict[str, Any] = {"models": [], "tags": [], "metadata": {}, "blocked": False}
"""What null stands for where the column has no null."""
_M = TypeVar("_M", bound=BaseModel)


def _is_duration(text: str) -> str:
    seconds(text)
    return text


def _is_storable(value: dict[str, object]) -> dict[str, object]:
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError("a number is too large, or the nesting too deep") from None
    return value


Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Names = Annotated[list[Name], Field(max_length=1000)]
Limit = Annotated[int, Field(ge=0, le=2**53, strict=True)]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Duration = Annotated[str, AfterValidator(_is_duration)]


def seconds(duration: str) -> int:
    """The seconds of `30s`, `15m`, `12h`, `30d`, `2w` or `1mo`.

    Raises:
        ValueError: it is none of these.
    """
    read = re.fullmatch(r"([1-9][0-9]{0,9})(s|m|h|d|w|mo)", duration)
    if read is None:
        raise ValueError("a duration is a number and a unit: s, m, h, d, w or mo, such as 30d")
    if (length := int(read[1]) * _UNITS[read[2]]) > _MAX_DURATION_S:
        raise ValueError("a duration is at most 100 years")
    return length


class KeyFields(BaseModel):
    """What can be said of a key. Fields that LiteLLM has besides have no effect, which the answer says."""

    model_config = ConfigDict(extra="allow")
    key_alias: Name | None = None
    user_id: Name | None = None
    team_id: Name | None = None
    organization_id: Name | None = None
    models: Names | None = None
    max_budget: Dollars | None = None
    duration: Duration | None = None
    rpm_limit: Limit | None = None
    tpm_limit: Limit | None = None
    tags: Names | None = None
    metadata: Annotated[dict[str, object], AfterValidator(_is_storable)] | None = None
    blocked: Annotated[bool, Field(strict=True)] | None = None

    def ignored(self) -> dict[str, list[str]]:
        """For the answer: the names of fields without an effect."""
        others = sorted(name[:64] for name in self.model_extra or {})[:100]
        return {"ignored": others} if others else {}

    def columns(self, now: float) -> dict[str, Any]:
        """The columns of the fields that were given."""
        given = self.model_dump(include=self.model_fields_set & set(KeyFields.model_fields))
        if "duration" in given:
            length = given.pop("duration")
            given["expires_at"] = None if length is None else now + seconds(length)
        for name in _NOTHING.keys() & given:
            given[name] = _NOTHING[name] if given[name] is None else given[name]
        return {_COLUMNS.get(name, name): value for name, value in given.items()}


class ChangedKey(KeyFields):
    key: str


class AskedKey(BaseModel):
    key: str | None = None


class DeletedKeys(BaseModel):
    keys: list[str] = Field(default=[], max_length=1000)
    key_aliases: list[Name] = Field(default=[], max_length=1000)


def routes(keys: Keys) -> list[Route]:
    """Making and changing is for the admin; a key may be shown to itself."""

    async def generate(request: Request) -> Response:
        """Make a key; its secret is shown this once."""
        _check_admin(request)
        body = await read_body(request, KeyFields)
        secret, key = await keys.create(body.columns(time.time()))
        return JSONResponse({"key": secret, **told(key), **body.ignored()})

    async def info(request: Request) -> Response:
        """Show a key: by itself or by its token_id; without `key`, the one that asks."""
        principal: Principal = request.state.principal
        asked = request.query_params.get("key")
        id_ = principal.key_id if asked is None else _id_of(asked)
        if id_ == MASTER.key_id and principal.key_id == id_:
            return JSONResponse({"key": id_, "info": {"token_id": id_, "key_alias": MASTER.alias}})
        key = await keys.by_id(id_) if principal.is_admin or id_ == principal.key_id else None
        if key is None:
            raise NotFound("there is no such key", param="key")
        return JSONResponse({"key": key.id, "info": told(key)})

    async def update(request: Request) -> Response:
        """Change the fields of a key that are given."""
        _check_admin(request)
        body = await read_body(request, ChangedKey)
        key = await keys.update(_id_of(body.key), body.columns(time.time()))
        return JSONResponse({"key": key.id, **told(key), **body.ignored()})

    async def delete(request: Request) -> Response:
        """Remove keys, named by themselves, their token_ids or their aliases."""
        _check_admin(request)
        body = await read_body(request, DeletedKeys)
        if not body.keys and not body.key_aliases:
            raise Refused("name the keys to delete in `keys` or `key_aliases`", param="keys")
        gone = await keys.delete([_id_of(key) for key in body.keys], body.key_aliases)
        if not gone:
            raise NotFound("there are no such keys", param="keys")
        return JSONResponse({"deleted_keys": gone})

    return [
        route("POST", "/key/generate", generate, body=KeyFields),
        route("GET", "/key/info", info, query=AskedKey),
        route("POST", "/key/update", update, body=ChangedKey),
        route("POST", "/key/delete", delete, body=DeletedKeys),
    ]


def told(key: Key) -> dict[str, object]:
    """A key as LiteLLM's clients read it."""
    who = key.principal
    return {
        "token_id": key.id,
        "token": key.id,
        "key_name": f"sk-...{key.hint}",
        "key_alias": who.alias,
        "user_id": who.user,
        "team_id": who.team,
        "organization_id": who.organisation,
        "models": sorted(who.models),
        "max_budget": key.max_budget,
        "spend": key.spent,
        "rpm_limit": key.rpm_limit,
        "tpm_limit": key.tpm_limit,
        "tags": list(who.tags),
        "metadata": dict(who.metadata),
        "blocked": key.blocked,
        "created_at": moment(key.created_at),
        "expires": None if key.expires_at is None else moment(key.expires_at),
    }


def moment(unix_s: float) -> str:
    """RFC 3339, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _id_of(key_or_id: str) -> str:
    return hashed(key_or_id) if key_or_id.startswith("sk-") else key_or_id.replace("\0", "")


def _check_admin(request: Request) -> None:
    if not request.state.principal.is_admin:
        raise Forbidden("only the admin key may do this")


async def read_body(request: Request, shape: type[_M]) -> _M:
    """The JSON of a request.

    Raises:
        Refused: it is too long, no JSON, or has a field of the wrong type, which is named.
    """
    text = bytearray()
    async for chunk in request.stream():
        text += chunk
        if len(text) > MAX_BODY_BYTES:
            raise TooLarge(f"the body is longer than {MAX_BODY_BYTES} bytes")
    try:
        return shape.model_validate_json(bytes(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(f"{where}: {first['msg']}" if where else first["msg"], param=where or None) from None
