"""Skills on their way in: a form with files or an archive, kept on the disk until it is whole."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request

from treadle.gateway import multipart
from treadle.gateway.multipart import Part
from treadle.gateway.refusals import Refused
from treadle.skills.archive import MAX_ARCHIVE_BYTES, Entry, read_archive, read_entries
from treadle.skills.package import MAX_FILES, Package

MAX_FIELDS = 20
MAX_FIELD_BYTES = 4096
MAX_FORM_BYTES = MAX_ARCHIVE_BYTES + (2 << 20)
"""With the heads of its parts."""
_BUFFER_BYTES = 1 << 20

_FILES = re.compile(r"files?(\[[0-9]{0,4}\])?", re.ASCII)
"""Names of parts that have files: `files[]`, as Anthropic's package writes it, and as others do."""


@dataclass(slots=True)
class _Place:
    path: str
    start: int
    size: int = 0


@dataclass(slots=True)
class Form:
    """What came: its fields, and where in `spool` its files are."""

    spool: BinaryIO
    fields: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    files: list[_Place] = field(default_factory=list[_Place])
    _waiting: bytearray = field(default_factory=bytearray)

    @property
    def texts(self) -> Mapping[str, str]:
        return {name: bytes(value).decode("utf-8", "replace") for name, value in self.fields.items()}

    def begin(self, part: Part) -> None:
        """The next pieces are of `part`."""
        if not _FILES.fullmatch(part.name):
            self.fields.setdefault(part.name, bytearray())
            if len(self.fields) > MAX_FIELDS:
                raise Refused(f"the form has more than {MAX_FIELDS} fields")
        elif part.filename is None:
            raise Refused("a file of the form has no filename: give its path in the skill", param="files")
        else:
            last = self.files[-1] if self.files else _Place("", 0)
            self.files.append(_Place(part.filename, last.start + last.size))

    async def write(self, part: Part, data: bytes) -> None:
        if not _FILES.fullmatch(part.name):
            value = self.fields[part.name]
            value += data
            if len(value) > MAX_FIELD_BYTES:
                shown = "".join(filter(str.isprintable, part.name))[:64]
                raise Refused(f"a field is longer than {MAX_FIELD_BYTES} bytes", param=shown)
            return
        self.files[-1].size += len(data)
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        await run_sync(self.spool.write, data)

    def package(self) -> Package:
        """The skill in its files. Blocks.

        Raises:
            SkillInvalid: it is none by the specification.
            Refused: there are no files.
        """
        if not self.files:
            raise Refused(
                "the form has no part `files[]`: send the files of a skill, or a ZIP", param="files"
            )
        self.spool.seek(0)
        if len(self.files) == 1 and self.spool.read(4) in (b"PK\3\4", b"PK\5\6"):
            return read_archive(self.spool, strict=True)
        return read_entries([Entry(place.path, self._reader(place)) for place in self.files], strict=True)

    def _reader(self, place: _Place) -> Callable[[int], bytes]:
        def read(limit: int) -> bytes:
            self.spool.seek(place.start)
            return self.spool.read(min(limit, place.size))

        return read


def _temporary() -> BinaryIO:
    return cast("BinaryIO", TemporaryFile())  # a wrapper on Windows, with the same methods


@asynccontextmanager
async def received(request: Request) -> AsyncGenerator[Form]:
    """The form of a request, whole.

    Raises:
        Refused: it is none, too much, or its client went away.
    """
    with await run_sync(_temporary) as spool:
        form = Form(spool)
        part: Part | None = None
        parts = multipart.read(
            request.stream(),
            request.headers.get("content-type", ""),
            max_bytes=MAX_FORM_BYTES,
            max_parts=MAX_FILES + MAX_FIELDS,
        )
        async with aclosing(parts) as events:
            try:
                async for event in events:
                    if isinstance(event, Part):
                        part = event
                        form.begin(part)
                    elif part is not None:
                        await form.write(part, event)
            except ClientDisconnect:
                raise Refused("the client went away before the skill was whole") from None
        await form.flush()
        yield form
