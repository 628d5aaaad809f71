"""A container, made anew after its process ended: its code runs again, and files are what they were."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from treadle.conversation.request import ToolSpec
from treadle.errors import SkillNotFound, TreadleError
from treadle.execution import journal
from treadle.execution.journal import Answered, Called, Recorded, signature
from treadle.hosted.aside import aside
from treadle.hosted.asked import Wanted
from treadle.hosted.host import Caller, Host, Place, expired
from treadle.hosted.library import Loaded
from treadle.hosted.log import Log, printed
from treadle.hosted.records import Entry, Saved, sha256_of
from treadle.hosted.replay import Replay, parted

LOST = (
    "The server was restarted, and the container could not be made anew: {why}. Variables and files are "
    "gone: run what you need anew"
)


class Unrepeatable(TreadleError):
    """What ran does not run the same way again."""


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """See the module. For one container, which this process has claimed."""

    host: Host
    caller: Caller
    saved: Saved

    async def place(
        self, skills: Sequence[Loaded], ended: Sequence[Entry], next_number: int, program: str
    ) -> Place:
        """The container as it was after `ended`.

        Args:
            skills: its.
            ended: what happened in it.
            next_number: of the next entry.
            program: the id of the one that goes on, or nothing.

        Raises:
            Unrepeatable: this process has not what it was made with, or something came out otherwise.
            TooManyContainers: there is no room.
            SandboxError: it could not be made.
        """
        for entry in ended:
            if entry.kind == "broken":
                raise Unrepeatable(str(entry.body["why"]))
        made_of = self.saved.made_of
        place = await self.host.make(self.caller.owner, skills, made_of.packages, like=self.saved)
        try:
            if place.container.fingerprint != made_of.fingerprint:
                raise Unrepeatable(
                    f"it ran with {made_of.fingerprint}, and here is {place.container.fingerprint}"
                )
            with anyio.fail_after(self.host.limits.wall_s):
                for number, entry in enumerate(ended, 1):
                    await (self._put if entry.kind == "put" else self._run)(place, entry.body, number)
            assert self.host.records
            await self.host.records.forget(self.saved.id, next_number)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.host.end(place, forget=False)
            if isinstance(error, TimeoutError):
                raise Unrepeatable("its code runs for too long") from None
            raise
        place.log = Log(self.host.records, place.container, self.saved, is_saved=True, number=next_number)
        place.log.program = program
        return place

    async def skills(self) -> Sequence[Loaded]:
        """Those that it showed.

        Raises:
            Unrepeatable: one is not there any more, or not for the caller.
        """
        try:
            skills = await self.host.library.load(self.caller.reader, _wanted(self.saved))
        except SkillNotFound as error:
            raise Unrepeatable(str(error)) from None
        digests = [digest for *_, digest in self.saved.made_of.skills]
        if [each.folder.digest for each in skills] != digests:
            raise Unrepeatable("a skill that it showed is not there any more")
        return skills

    async def _put(self, place: Place, body: Mapping[str, Any], _number: int) -> None:
        assert self.host.records
        for path, sha256 in body["files"].items():
            await place.container.put(path, await self.host.records.content(sha256))
        place.uploaded.update(body["uploaded"])

    async def _run(self, place: Place, body: Mapping[str, Any], number: int) -> None:
        """Run code once more; the files are then those that it had left."""
        assert self.host.records
        container = place.container
        recorded = Recorded(list(_entries(body["calls"])))
        unanswered = [signature(*call) for call in body["calls"] if len(call) == 2]
        cell = await container.execute(
            body["code"],
            tools=[ToolSpec(**tool) for tool in body["tools"]],
            limit_s=self.host.limits.code_s,
            replay=recorded,
        )
        async for request in cell:
            if (made := signature(request.name, request.arguments)) in unanswered:
                unanswered.remove(made)
                continue
            cell.cancel()
            await cell.ended()
            raise Unrepeatable(f"its run {number} now calls {request.name}, which it had not called so")
        result = await cell.finished()
        cell.journal.forget(cell.id)
        if recorded.left:
            raise Unrepeatable(f"its run {number} did not call {recorded.left[0].tool} again")
        if (printed(result), result.return_code) != (body["printed"], body["return_code"]):
            raise Unrepeatable(f"its run {number} printed something else")
        written = await aside(lambda: {file.path: sha256_of(file.data) for file in result.files})
        if written.keys() != body["files"].keys() or sorted(result.removed) != sorted(body["removed"]):
            raise Unrepeatable(f"its run {number} left other files")
        for path, sha256 in body["files"].items():
            if written[path] != sha256:
                await container.put(path, await self.host.records.content(sha256))


async def found(
    host: Host, caller: Caller, container_id: str, pending: Sequence[str]
) -> tuple[Place | None, Replay | None]:
    """A container of `caller`, made anew where its process is gone.

    Args:
        host: where.
        caller: whose it must be.
        container_id: its id.
        pending: ids of calls of code for whose answers the request comes.

    Returns:
        The container, and the program that goes on, if it has to run again. None and a program: the container
        cannot be made anew.

    Raises:
        ContainerExpired: there is none, or none any more, or it cannot be made anew.
        ContainerBusy: another process has it.
        InvalidArgument: it knows no such calls.
        TooManyContainers: there is no room.
    """
    records = host.records
    known = records is None or await host.has(container_id)
    saved = None if known or not records else await records.claim(container_id, caller.owner)
    if saved is None or not records:
        return host.find(container_id, caller.owner), None
    before, replay, next_number = parted(saved.entries, pending, host.limits.answer_s, records.now())
    building = Rebuilding(host, caller, saved)
    try:
        skills = await building.skills()
        if replay:
            replay.skills = _wanted(saved)
        place = await building.place(skills, before, next_number, replay.program if replay else "")
    except Unrepeatable as error:
        why = LOST.format(why=error)
        if replay is None:
            await records.remove([container_id])
            raise expired(container_id, why) from None
        replay.lost = why
        return None, replay
    return place, replay


def _entries(calls: Sequence[Sequence[Any]]) -> Iterator[journal.Entry]:
    for at, (tool, arguments, *answer) in enumerate(calls):
        yield Called("", str(at), tool, arguments)
        if answer:
            yield Answered("", str(at), *answer)


def _wanted(saved: Saved) -> Sequence[Wanted]:
    return [Wanted(id_, version) for id_, version, *_ in saved.made_of.skills]
