"""A model that has code and skills, hosted here: a request goes in, and one reply comes out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import anyio

from treadle.conversation import events
from treadle.conversation.blocks import EMPTY
from treadle.conversation.deltas import Ended, Started
from treadle.conversation.history import History
from treadle.conversation.request import ModelRequest, Reply, StopReason, ToolSpec
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import ContainerExpired, InvalidArgument
from treadle.hosted.aside import aside
from treadle.hosted.asked import Asked, for_provider, read_asked
from treadle.hosted.blocks import CODE_TOOL, Ran, as_calls, code_result, skill_result
from treadle.hosted.code import HostedCode
from treadle.hosted.desk import Desk
from treadle.hosted.host import Caller, Host
from treadle.hosted.outgoing import Outgoing
from treadle.hosted.steps import HandedOver, Steps
from treadle.hosted.tools import SkillTool, SkillTools, tool_name
from treadle.hosted.uploads import Uploads
from treadle.loop.limits import Limits
from treadle.loop.plan import Plan
from treadle.loop.run import Finished, Run
from treadle.models.base import Abilities, Model, OnDelta
from treadle.skills.prompt import Placed, told

FILES = "_litellm_generated_files"
METADATA = "metadata"


@dataclass(slots=True, eq=False)
class Hosted:
    """`inner`, whose requests may name skills and a container. For one request."""

    inner: Model
    host: Host
    caller: Caller
    price: Callable[[Usage], float | None] | None = None
    """US dollars of a model call that the provider did not price; may block."""
    _run: Run | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def abilities(self) -> Abilities:
        return self.inner.abilities

    @property
    def usage(self) -> Usage:
        """What was spent so far, also where there is no reply."""
        return self._run.spending.usage if self._run else NO_USAGE

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        """What the model says, and what ran for it meanwhile, until it ends or calls the caller's tools.

        Raises:
            InvalidArgument: what the request asks cannot be.
            SkillNotFound: a skill is not there.
            ContainerExpired: the container is not there.
            ModelError: as of any model.
        """
        turn = await self._turn(request, Outgoing(on_delta), streaming=on_delta is not None)
        self._run = turn.run
        return await turn.play(self.host.limits.wall_s)

    async def _turn(self, request: ModelRequest, out: Outgoing, *, streaming: bool) -> "_Turn":
        asked = read_asked(request.extra.get("container"))
        if request.extra.get("n") not in (None, 1):
            raise InvalidArgument("n must be 1 where skills are named: one answer has one container")
        desk = await self._desk(asked)
        tools = [SkillTool(skill, desk.location(skill)) for skill in desk.skills]
        names = {skill.folder.name: tool_name(skill.id) for skill in desk.skills}
        code = HostedCode(desk)
        taken = {CODE_TOOL, *names.values()}
        if used := [tool.name for tool in request.tools if isinstance(tool, ToolSpec) and tool.name in taken]:
            raise InvalidArgument(f"a tool of the request is named {used[0]!r}, as one of ours: rename it")
        uploads = Uploads(self._fetch, desk.root, desk.place.uploaded if desk.place else {})
        messages = as_calls(await uploads.without(request.messages), names)
        desk.uploads = uploads.files
        sent = for_provider(request)
        if check := getattr(self.inner, "check", None):
            await aside(lambda: check(replace(sent, messages=messages)))
        native = cast("Mapping[str, object] | None", sent.extra.get("container"))
        if native and (known := desk.place.native if desk.place else asked.container):
            native = {**native, "id": known}
        steps = Steps(
            self.inner,
            sent,
            out,
            desk,
            {name: skill for skill, name in names.items()},
            streaming,
            native,
        )
        limits = Limits(max_turns=self.host.limits.iterations, max_cost=self.host.limits.max_cost)
        placed = [Placed(skill.package, desk.location(skill), tool_name(skill.id)) for skill in desk.skills]
        plan = Plan(
            steps,
            (SkillTools(tools), code),
            parameters={"tools": sent.tools},
            limits=limits,
            price=self.price,
            told=(told(placed),) if placed else (),
        )
        turn = _Turn(self.host, steps, out, code)
        turn.run = Run(plan, History(messages), turn.hear)
        return turn

    async def _desk(self, asked: Asked) -> Desk:
        place = None
        if asked.container is not None:
            try:
                place = self.host.find(asked.container, self.caller.owner)
            except ContainerExpired:
                if not asked.native:  # else it is the provider's
                    raise
        skills = await self.host.library.load(self.caller.reader, asked.skills)
        choice, root = await self.host.packages(skills), await self.host.root()
        return Desk(self.host, self.caller.owner, skills, choice, root, place)

    async def _fetch(self, file_id: str) -> tuple[str, bytes]:
        if self.host.files is None:
            raise InvalidArgument(f"there is no store of files here, and so no file {file_id[:80]!r}")
        return await self.host.files.fetch(self.caller.owner, file_id)


@dataclass(slots=True, eq=False)
class _Turn:
    """One request on its way to its reply."""

    host: Host
    steps: Steps
    out: Outgoing
    code: HostedCode
    run: Run = field(init=False)
    _answered: set[str] = field(default_factory=set[str], init=False)
    """Ids of calls whose result was told."""

    async def play(self, wall_s: float) -> Reply:
        """Run it to its end."""
        run = self.run
        finished: Finished | None = None
        try:
            with anyio.move_on_after(wall_s) as deadline:
                try:
                    outcome = await run.advance()
                    assert isinstance(outcome, Finished), "nobody is asked"
                    finished = outcome
                except HandedOver:
                    pass
        finally:
            try:
                await run.close()
            finally:
                interrupted = run.interrupt()
        await self.out.begin(Started("", self.steps.name))  # the model may not even have begun
        await self.out.close_blocks()
        for event in interrupted:
            await self.hear(event)
        for call_id in [id_ for id_ in self.steps.shown if id_ not in self._answered]:
            await self._result(call_id, "not run")
        await run.spending.settle()
        files = await aside(self.code.files) if self.code.written else []
        return await self.out.end(self._ended(finished, files, wall_s if deadline.cancelled_caught else None))

    async def hear(self, event: events.Event) -> None:
        """Tell what runs here: it is a part of the reply."""
        match event:
            case events.ToolCall(id, name) if id not in self.steps.shown:  # the model wrote it as text
                await self.steps.show_whole(id, name, event.input)
            case events.ToolResult(id, output) if id in self.steps.shown:
                await self._result(id, output)
            case _:
                pass

    async def _result(self, call_id: str, output: str) -> None:
        self._answered.add(call_id)
        if self.steps.shown[call_id] != CODE_TOOL:
            await self.out.whole(skill_result(call_id, output))
            return
        ran, self.code.last = self.code.last, None
        await self.out.whole(code_result(call_id, ran or Ran(stderr=output, return_code=1)))

    def _ended(
        self, finished: Finished | None, files: Sequence[Mapping[str, object]], late_s: float | None
    ) -> Ended:
        spending, last, desk = self.run.spending, self.steps.last, self.code.desk
        beside: dict[str, object] = {}
        if files:
            beside[FILES] = files
        if late_s is not None:
            beside[METADATA] = _limit("wall_s", late_s, f"there was no end within {late_s:g} s")
        elif finished and (reached := finished.limit) and not self.steps.handed:
            beside[METADATA] = _limit(reached.name, reached.value, reached.detail)
        if desk.place is not None and self.steps.container is not None:
            desk.place.native = cast("str | None", self.steps.container.get("id"))
        return Ended(
            self._reason(limited=METADATA in beside),
            spending.usage,
            desk.told() or self._native_container(),
            cost=spending.cost if self.steps.is_priced and last else None,
            beside=beside or EMPTY,
        )

    def _reason(self, *, limited: bool) -> StopReason:
        said = self.steps.last.stop_reason if self.steps.last else "stop"
        if self.steps.handed:
            return "tool_calls" if said == "stop" else said
        if self.out.cut_call:
            return "length"
        return "stop" if limited or said == "tool_calls" else said

    def _native_container(self) -> Mapping[str, object] | None:
        """The provider's, where nothing ran here."""
        last = self.steps.last
        return last.container if last else None


def _limit(name: str, value: float, detail: str) -> Mapping[str, str]:
    """A limit in `metadata`: the wire of OpenAI has strings alone there."""
    return {"treadle_limit": name, "treadle_limit_value": f"{value:g}", "treadle_limit_detail": detail}
