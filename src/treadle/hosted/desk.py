"""The container of one request: that of its conversation, or a new one when code first runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from treadle.conversation.native_code import now
from treadle.errors import SandboxError, TreadleError
from treadle.hosted.blocks import SKILLS
from treadle.hosted.host import Host, Place
from treadle.hosted.library import Loaded
from treadle.sandbox.choosing import SetChoice
from treadle.sandbox.shown import clashes


@dataclass(slots=True, eq=False)
class Desk:
    """See the module."""

    host: Host
    owner: str
    skills: Sequence[Loaded]
    choice: SetChoice
    """Of their packages."""
    root: str
    """See `Host.root`."""
    place: Place | None = None
    failure: TreadleError | None = None
    """Why there is no container: the caller has to know, and not the model."""
    uploads: dict[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])
    """Files of the caller that are put in before code runs: path and content, by what names them."""
    notes: list[str] = field(default_factory=list[str], init=False)
    """What the model has to read with the next result."""
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    async def ready(self) -> Place:
        """The container, with all in it that code may expect.

        Raises:
            SandboxError: it could not be had.
        """
        async with self._turn:
            place = self.place
            if place is None or place.container.expired or not self._shows_all(place):
                place = self.place = await self._made()
            while self.uploads:  # whoever began this may have been cancelled
                key, (path, data) = next(iter(self.uploads.items()))
                if key not in place.uploaded:
                    await self._put(place, key, path, data)
                    place.uploaded[key] = path
                del self.uploads[key]
            return place

    async def _put(self, place: Place, key: str, path: str, data: bytes) -> None:
        """Write a file; what code made in its place stays, and the model is told."""
        try:
            await place.container.put(path, data)
            if place.log:
                place.log.put({path: data}, {key: path})
        except SandboxError as error:
            if place.container.expired:
                raise
            self.notes.append(f"[the file {path} of the user was not put in: {error}]")

    async def _made(self) -> Place:
        try:
            return await self.host.make(self.owner, self.skills, self.choice.name)
        except TreadleError as error:
            self.failure = error
            raise

    def location(self, skill: Loaded) -> str:
        """Of the folder of a skill, as code has it."""
        return f"{self.root}{SKILLS}/{skill.folder.name}"

    def about(self) -> Sequence[str]:
        """What there is for the model to know of the container."""
        if not self.skills:
            return ()
        told = ["The folder of each skill is read-only, and is on the import path."]
        if self.choice.name:
            told.append(f"The package set {self.choice.name!r} is installed beside the standard library.")
        told += [
            f"Not installed: {each.requirement}, which {each.source} requires."
            for each in self.choice.missing
        ]
        for clash in clashes([skill.folder for skill in self.skills]):
            hidden = ", ".join(clash.hidden)
            told.append(
                f"`import {clash.module}` finds that of {clash.used}. For that of {hidden}, run a script in "
                "a process of its own, with the folder of the skill first in PYTHONPATH."
            )
        return told

    def _shows_all(self, place: Place) -> bool:
        shown = place.container.shown
        return all(shown.get(each.folder.name) == each.folder.digest for each in self.skills)

    def told(self) -> Mapping[str, Any] | None:
        """The container as a response names it."""
        if self.place is None or self.place.container.expired:
            return None
        until = self.place.container.expires_at
        return {"id": self.place.container.id, "expires_at": max(until, now()).isoformat()}
