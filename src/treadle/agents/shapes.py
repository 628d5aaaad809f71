"""Answers as users of chat completions know them: dicts whose keys are attributes, too."""

import json
from collections.abc import Mapping
from typing import Any, cast


class Shaped(dict[str, Any]):
    """JSON as an object: `response.choices[0].message.content`, `response["choices"]`, `.get(...)`.

    A key that is not there raises KeyError as a key, and AttributeError as an attribute.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({name: _shaped(value) for name, value in fields.items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r}: known are {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Plain dicts and lists, as JSON has them."""
        return cast("dict[str, Any]", _plain(self))

    dict = to_dict = model_dump

    def model_dump_json(self, **_: Any) -> str:
        """JSON text."""
        return json.dumps(self)

    json = model_dump_json


def _shaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Shaped(cast("Mapping[str, Any]", value))
    return list(map(_shaped, cast("list[Any]", value))) if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in cast("dict[str, Any]", value).items()}
    return list(map(_plain, cast("list[Any]", value))) if isinstance(value, list) else value
