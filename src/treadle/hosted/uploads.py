"""Files that a caller sends along for code: into the container, and in words into the conversation."""

import hashlib
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from treadle.conversation.blocks import Block, Document, Message, Opaque, Text
from treadle.errors import InvalidArgument
from treadle.hosted.aside import aside
from treadle.skills.package import is_fit
from treadle.wire.json_text import split_data_url

_READ = frozenset({"application/pdf", "text/plain"})
"""Documents that models read themselves: they get them too."""
_FOLDER = "in"
"""Of the working folder: what code knows as `$INPUT_DIR`."""
_TOLD = "[a file of the user is at {root}/workspace/{path}, {size:,} bytes]"
_THERE = "[a file of the user is at {root}/workspace/{path}]"
MAX_BYTES = 128 << 20
"""Of all files of a request."""

Fetch = Callable[[str], Awaitable[tuple[str, bytes]]]
"""The name and the content of a stored file."""


@dataclass(slots=True)
class Uploads:
    """Takes the files out of a conversation."""

    fetch: Fetch
    root: str
    """See `Host.root`."""
    known: Mapping[str, str]
    """Paths of those that are in the container already, by what names them."""
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]], init=False)
    """Path and content, by what names a file: its id, or the hash of its content."""

    async def without(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """`messages`, in which text stands for what no model takes.

        Raises:
            TreadleError: a file that is named is not there, or one is no base64.
        """
        told: list[Message] = []
        for message in messages:
            blocks: list[Block] = []
            for block in message.blocks if message.role == "user" else ():
                blocks += await self._told(block)
            told.append(message if message.role != "user" else replace(message, blocks=tuple(blocks)))
        return tuple(told)

    async def _told(self, block: Block) -> Sequence[Block]:
        if isinstance(block, Opaque) and (file_id := _named(block)):
            if file_id not in self.files and file_id not in self.known:
                name, data = await self.fetch(file_id)
                self._add(file_id, name, data)
            return (self._note(file_id),)
        if isinstance(block, Document) and (read := await aside(lambda: _content(block.url))):
            mime_type, data, key = read
            if key not in self.files:
                self._add(key, block.title or "document", data)
            return (block, self._note(key)) if mime_type in _READ else (self._note(key),)
        return (block,)

    def _add(self, key: str, name: str, data: bytes) -> None:
        if len(data) + sum(len(each) for _, each in self.files.values()) > MAX_BYTES:
            raise InvalidArgument(
                f"the files of one request have more than {MAX_BYTES >> 20} MiB together: send fewer"
            )
        self.files[key] = self.known.get(key) or self._free(name), data

    def _free(self, name: str) -> str:
        """A path that nothing has yet, after the name that a client gives."""
        name = name.replace("\\", "/").rpartition("/")[2]
        if not is_fit(name) or not is_fit(f"9999-{name}"):
            name = "file"
        taken = {*self.known.values(), *(path for path, _ in self.files.values())}
        path, number = f"{_FOLDER}/{name}", 1
        while path in taken:
            number += 1
            path = f"{_FOLDER}/{number}-{name}"
        return path

    def _note(self, key: str) -> Text:
        if key not in self.files:
            return Text(_THERE.format(root=self.root, path=self.known[key]))
        path, data = self.files[key]
        return Text(_TOLD.format(root=self.root, path=path, size=len(data)))


def _content(url: str) -> tuple[str, bytes, str] | None:
    """The type, the bytes and the hash of a file that stands in its own address."""
    split = split_data_url(url)
    if split is None:
        return None
    data = b64decode(split[1])
    return split[0], data, hashlib.sha256(data).hexdigest()


def _named(block: Opaque) -> str:
    """The id of the stored file that a block names: as Messages, or as Chat Completions does."""
    if block.kind == "container_upload":
        found: Any = block.raw.get("file_id")
    elif block.kind == "file" and isinstance(file := block.raw.get("file"), dict):
        found = cast("dict[str, Any]", file).get("file_id")
    else:
        return ""
    return found if isinstance(found, str) else ""
