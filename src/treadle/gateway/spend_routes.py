"""`GET /spend`: what was used, by key, tag, model, user or team, over days."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from treadle.gateway.gate import Principal
from treadle.gateway.ledger import Ledger
from treadle.gateway.refusals import Refused
from treadle.gateway.stored_routes import route

MAX_ROWS = 10_000


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore")
    by: Literal["key", "tag", "model", "user", "team"] = "key"
    days: Annotated[int, Field(ge=1, le=3660)] = 30


def routes(ledger: Ledger) -> list[Route]:
    """The admin sees all, a key what it spent itself."""

    async def spend(request: Request) -> Response:
        """What was spent a day, summed by key, tag, model, user or team."""
        principal: Principal = request.state.principal
        try:
            asked = _Asked.model_validate(dict(request.query_params))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = str(first["loc"][0])
            raise Refused(f"{where}: {first['msg']}", param=where) from None
        since = (datetime.now(UTC) - timedelta(days=asked.days - 1)).date().isoformat()
        key_id = None if principal.is_admin else principal.key_id
        rows = await ledger.spending(asked.by, since, key_id=key_id, limit=MAX_ROWS + 1)
        data = [{**row, asked.by: row["name"]} for row in rows[:MAX_ROWS]]
        for row in data:
            del row["name"]
        return JSONResponse(
            {"by": asked.by, "days": asked.days, "data": data, "has_more": len(rows) > MAX_ROWS}
        )

    return [route("GET", "/spend", spend, query=_Asked)]
