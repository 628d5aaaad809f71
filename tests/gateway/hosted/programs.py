"""Programs as models write them, the tools that they call, and loops as clients write them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.hosted.conftest import Answer, ChatClient, MessagesClient

Raw = dict[str, Any]
CODE = "litellm_code_execution"
CODE_TOOL: Raw = {"type": "code_execution_20260120", "name": "code_execution"}
OURS: Raw = {"metadata": {"treadle": {"code_execution": "treadle"}}}
FROM_CODE = ("code_execution_20260120",)


@dataclass(frozen=True)
class ToolOfClient:
    """A tool with one text argument."""

    name: str
    argument: str
    run: Callable[[str], str]
    callers: Sequence[str] = FROM_CODE
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def schema(self) -> Raw:
        fields = {self.argument: {"type": "string"}}
        return {"type": "object", "properties": fields, "required": [self.argument]}

    def told(self, *, chat: bool) -> Raw:
        callers: Raw = {"allowed_callers": list(self.callers), **self.more}
        about = f"Runs {self.name}; gives text."
        if chat:
            function = {"name": self.name, "description": about, "parameters": self.schema}
            return {"type": "function", "function": function, **callers}
        return {"name": self.name, "description": about, "input_schema": self.schema, **callers}


@dataclass(frozen=True)
class Shape:
    """A program, and what becomes of it."""

    code: str
    tool: ToolOfClient
    asked: Sequence[Sequence[str]]
    """Arguments of the calls that wait together, one response after another."""
    printed: str


AMOUNTS = {"West": 3, "East": 9, "Central": 1, "North": 4, "South": 5}
LOG = [f"{'ERROR' if n % 3 == 0 else 'INFO'} line {n}" for n in range(40)]
ENDPOINTS = [f"node-{n}" for n in range(50)]


def revenue(region: str) -> str:
    return json.dumps([{"total": AMOUNTS[region]}])


def shapes() -> dict[str, Shape]:
    database = ToolOfClient("query_database", "region", revenue)
    health = ToolOfClient("check_health", "name", lambda name: "healthy" if name != "us-east" else "down")
    logs = ToolOfClient("fetch_logs", "server", lambda _: json.dumps(LOG))
    rolls = {name: iter(faces) for name, faces in {"one": "6526", "two": "1612"}.items()}
    dice = ToolOfClient("roll", "player", lambda player: next(rolls[player]))
    return {
        "three regions at once": Shape(
            "import asyncio, json\n"
            "names = ['West', 'East', 'North']\n"
            "rows = await asyncio.gather(*(query_database({'region': name}) for name in names))\n"
            "print(max(json.loads(row)[0]['total'] for row in rows))",
            database,
            [["West", "East", "North"]],
            "9\n",
        ),
        "five regions in turn": Shape(
            "totals = {}\n"
            "for region in ['West', 'East', 'Central', 'North', 'South']:\n"
            "    data = await query_database(region)\n"
            "    totals[region] = data[0]['total']\n"
            "top = max(totals.items(), key=lambda item: item[1])\n"
            "print(f'{top[0]}: ${top[1]:,}')",
            database,
            [[name] for name in AMOUNTS],
            "East: $9\n",
        ),
        "early stop": Shape(
            "for endpoint in ['us-east', 'eu-west', 'apac']:\n"
            "    if await check_health(endpoint) == 'healthy':\n"
            "        print(endpoint)\n"
            "        break",
            health,
            [["us-east"], ["eu-west"]],
            "eu-west\n",
        ),
        "log filter": Shape(
            "lines = await fetch_logs('server-7')\n"
            "errors = [line for line in lines if 'ERROR' in line]\n"
            "print(len(errors))\n"
            "for line in errors[-2:]:\n"
            "    print(line)",
            logs,
            [["server-7"]],
            "14\nERROR line 36\nERROR line 39\n",
        ),
        "fifty endpoints at once": Shape(
            "import asyncio\n"
            "names = [f'node-{n}' for n in range(50)]\n"
            "states = await asyncio.gather(*(check_health({'name': name}) for name in names))\n"
            "print(sum(state == 'healthy' for state in states))",
            health,
            [ENDPOINTS],
            "50\n",
        ),
        "dice game": Shape(
            "import asyncio\n"
            "async def main():\n"
            "    wins = [0, 0]\n"
            "    while max(wins) < 3:\n"
            "        a, b = await asyncio.gather(roll({'player': 'one'}), roll({'player': 'two'}))\n"
            "        if a != b:\n"
            "            wins[int(b) > int(a)] += 1\n"
            "    print(*wins)\n"
            "asyncio.run(main())",
            dice,
            [["one", "two"]] * 4,
            "3 1\n",
        ),
    }


@dataclass
class Loop:
    """What a client does until a model has answered."""

    client: MessagesClient | ChatClient
    tools: Sequence[ToolOfClient]
    blocks: bool = False
    """Whether a client of Chat Completions answers by blocks of Messages."""
    more: Mapping[str, Any] = field(default_factory=lambda: OURS)
    code_tool: Mapping[str, Any] = field(default_factory=lambda: CODE_TOOL)
    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Go."}])
    answers: list[Answer] = field(default_factory=list[Answer])

    @property
    def is_chat(self) -> bool:
        return isinstance(self.client, ChatClient)

    @property
    def options(self) -> Raw:
        return {"tools": [dict(self.code_tool), *(tool.told(chat=self.is_chat) for tool in self.tools)]}

    @property
    def container(self) -> str | None:
        return self.answers[-1].container if self.answers else None

    async def step(self, **more: Any) -> Answer:
        """One request; what it says goes into the conversation."""
        answer = await self.client.ask(self.messages, self.container, self.more, **{**self.options, **more})
        self.answers.append(answer)
        self.messages.append(answer.again)
        return answer

    def calls(self) -> list[Raw]:
        """Of the last response, as id, name, input and caller."""
        last = self.answers[-1]
        if isinstance(self.client, MessagesClient):
            return [block for block in last.raw["content"] if block["type"] == "tool_use"]
        made: list[Raw] = last.again.get("tool_calls") or []
        return [
            {
                "id": each["id"],
                "name": each["function"]["name"],
                "input": json.loads(each["function"]["arguments"]),
                "caller": each.get("caller"),
            }
            for each in made
        ]

    def results(self, **more: Any) -> list[Raw]:
        """Messages that answer them all."""
        named = {tool.name: tool for tool in self.tools}
        told = {
            call["id"]: named[call["name"]].run(call["input"][named[call["name"]].argument])
            for call in self.calls()
        }
        if self.is_chat and not self.blocks:
            return [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in told.items()]
        content = [
            {"type": "tool_result", "tool_use_id": id_, "content": text, **more} for id_, text in told.items()
        ]
        return [{"role": "user", "content": content}]

    async def to_the_end(self) -> Answer:
        while (answer := await self.step()).calls:
            self.messages += self.results()
        return answer
