"""What pydantic says of a signature. Imported when it is needed: that takes a tenth of a second."""

import copy
import re
from collections.abc import Mapping
from inspect import Parameter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from treadle.errors import InvalidTool
from treadle.tools.results import json_value


class SchemaGenerator(GenerateJsonSchema):
    """JSON Schemas that are JSON, whatever the defaults are."""

    # A default without a JSON form is left out of the schema; the function gets it all the same.
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012  # as pydantic declares it
        "skipped-choice",
        "non-serializable-default",
    }

    def encode_default(self, dft: Any) -> Any:
        return json_value(super().encode_default(dft))  # a NaN would make the whole request no JSON


class _ParametersGenerator(SchemaGenerator):
    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        said = super().tuple_schema(schema)
        if "prefixItems" in said:  # OpenAI refuses an array that does not say its items
            members = copy.deepcopy(said["prefixItems"])
            said.setdefault("items", members[0] if len(members) == 1 else {"anyOf": members})
        return said


def model_of(title: str, fields: Mapping[str, tuple[object, object]]) -> type[BaseModel]:
    """The model that checks arguments.

    Its fields have names of our own and the parameters are aliases: a parameter may be called `_x` or
    `model_config`, which no field may.

    Args:
        title: of the object.
        fields: annotation and default of each parameter, without a default `Parameter.empty`.
    """
    definitions: dict[str, Any] = {
        f"p{at}": (Annotated[hint, Field(alias=name)], ... if default is Parameter.empty else default)
        for at, (name, (hint, default)) in enumerate(fields.items())
    }
    return create_model(title, __config__=ConfigDict(extra="forbid"), **definitions)


def model_and_schema(
    name: str, title: str, fields: Mapping[str, tuple[object, object]]
) -> tuple[type[BaseModel], dict[str, Any]]:
    """The model that checks the arguments of tool `name`, and its JSON Schema.

    Raises:
        InvalidTool: a parameter has no JSON form.
    """
    try:
        model = model_of(title, fields)
        return model, model.model_json_schema(schema_generator=_ParametersGenerator)
    except Exception as error:  # a type may bring code of its own for pydantic to call
        # Without pydantic's link, and without its advice to allow any type, which would give no schema.
        reason = " ".join(re.split(r"\n\nFor further|\. Set `arb", str(error))[0].split())
        raise InvalidTool(
            f"tool {name!r} has a parameter that cannot be told to a model ({reason}): annotate it with a "
            "type that has a JSON form, such as str, list[int], an enum, a dataclass or a pydantic model"
        ) from error
