"""Tasks of BFCL's multi-turn base set, and the tools of the wheel that they are about.

Run as a process of its own in the environment that has the wheel: `python -m benchmarks.peers.bfcl COUNT`. It
prints the tasks, a line of JSON; then each line `[way, task, name, arguments]` is answered with what the tool
gave, and `[way, task]` with how that way's end differs from the ground truth's, nothing where it does not.
"""

import ast
import inspect
import json
import sys
from importlib import import_module, resources

from bfcl_eval.constants.executable_backend_config import (
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
)
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import state_checker
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

SET = "BFCL_v4_multi_turn_base.json"
DATA = resources.files("bfcl_eval") / "data"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
TRUTH = "truth"


def lines(*path: str) -> list[dict]:
    return [json.loads(line) for line in DATA.joinpath(*path).read_text("utf-8").splitlines() if line]


def json_schema(told):
    """A schema as the wheel has it, with the types of JSON Schema."""
    if isinstance(told, list):
        return [json_schema(each) for each in told]
    if not isinstance(told, dict):
        return told
    schema = {key: json_schema(value) for key, value in told.items()}
    if isinstance(kind := told.get("type"), str):
        schema["type"] = TYPES.get(kind, kind)
    return {key: value for key, value in schema.items() if value is not None}


def tools(entry: dict) -> list[dict]:
    """The tools of a task; what they return is told, as the leaderboard tells it to models."""
    left_out = entry.get("excluded_function", [])
    return [
        {
            "name": doc["name"],
            "description": f"{doc['description']} Returns: {json.dumps(json_schema(doc['response']))}",
            "input_schema": json_schema(doc["parameters"]),
        }
        for kind in entry["involved_classes"]
        for doc in lines("multi_turn_func_doc", MULTI_TURN_FUNC_DOC_FILE_MAPPING[kind])
        if doc["name"] not in left_out
    ]


def call(source: str, classes: list[str]) -> dict:
    """A call of the ground truth, with names for its arguments."""
    parsed = ast.parse(source, mode="eval").body
    method = next(
        getattr(found, parsed.func.id)
        for kind in classes
        if hasattr(found := getattr(import_module(CLASS_FILE_PATH_MAPPING[kind]), kind), parsed.func.id)
    )
    values = [ast.literal_eval(value) for value in parsed.args]
    named = {each.arg: ast.literal_eval(each.value) for each in parsed.keywords}
    bound = inspect.signature(method).bind(None, *values, **named).arguments
    return {"name": parsed.func.id, "arguments": dict(list(bound.items())[1:])}


def task(entry: dict, truth: list[list[str]]) -> dict:
    """What a client needs of a task; or why it cannot be done."""
    try:
        turns = [
            {"prompt": said[0]["content"], "calls": [call(each, entry["involved_classes"]) for each in calls]}
            for said, calls in zip(entry["question"], truth, strict=True)
        ]
    except (ValueError, TypeError, AttributeError, SyntaxError, StopIteration) as error:
        return {"id": entry["id"], "why_not": f"its ground truth is no plain calls: {error!r}"}
    return {"id": entry["id"], "turns": turns, "tools": tools(entry), "why_not": ""}


class Tools:
    """The instances of each way, which the wheel keeps by name."""

    def __init__(self, entries: dict[str, dict], truths: dict[str, list[list[str]]]) -> None:
        self.entries, self.truths = entries, truths
        self.given: dict[tuple[str, str], list[str]] = {}

    def run(self, way: str, id_: str, calls: list[str]):
        entry = self.entries[id_]
        given, instances = execute_multi_turn_func_call(
            calls, entry["initial_config"], entry["involved_classes"], way, id_
        )
        self.given.setdefault((way, id_), []).extend(given)
        return given, instances

    def call(self, way: str, id_: str, name: str, arguments: dict) -> str:
        named = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return self.run(way, id_, [f"{name}({named})"])[0][0]

    def differs(self, way: str, id_: str) -> str:
        if (TRUTH, id_) not in self.given:
            for calls in self.truths[id_]:
                self.run(TRUTH, id_, calls)
        there, expected = (self.run(each, id_, [])[1] for each in (way, TRUTH))
        checked = state_checker(there, expected)
        if not checked["valid"]:
            return f"{checked['error_message']} {checked['details']['differences']}"
        same = self.given[way, id_] == self.given[TRUTH, id_]
        return "" if same else "the tools gave something else than the ground truth's calls"


def main(count: int) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what a tool prints is no answer
    every = lines(SET)
    chosen = every[:: max(1, len(every) // count)][:count]  # they are sorted by their tools
    truths = {each["id"]: each["ground_truth"] for each in lines("possible_answer", SET)}
    there = Tools({each["id"]: each for each in chosen}, truths)
    print(json.dumps([task(each, truths[each["id"]]) for each in chosen]), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = there.call(*asked) if len(asked) > 2 else there.differs(*asked)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
