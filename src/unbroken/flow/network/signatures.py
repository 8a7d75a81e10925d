"""Turns the parameters of a Python function into a model that checks what a network gives for them.

Sources, sinks and the options of segments are declared by Python classes and functions. What a network may write for
them is read off these, so that the two ways to write a flow cannot come to differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

_STAND_INS: dict[str, Any] = {"StructType": str, "SegmentFunction": object}
"""Types that modules import for the type checker only: a schema is text in YAML, a function cannot be there."""


_PREFIX = "given_"


def model_of(
    function: Callable[..., Any],
    without: Collection[str] = (),
    prepare: Mapping[str, Callable[[Any], Any]] | None = None,
    written: Mapping[str, Any] | None = None,
) -> type[BaseModel]:
    """A model with a field for each named parameter of ``function``, except for those ``without``.

    ``prepare`` has functions that values of some parameters go through before they are checked, ``written`` what some
    are in a document, where that is another type.
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    target = function.__init__ if inspect.isclass(function) else function
    hints = get_type_hints(target, localns=_STAND_INS)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind not in named or name in ("self", *without):
            continue
        kind = (written or {}).get(name, hints.get(name, Any))
        if prepare is not None and name in prepare:
            kind = Annotated[kind, BeforeValidator(prepare[name])]
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # Under a name of its own, because names such as "schema" mean something to models themselves.
        fields[f"{_PREFIX}{name}"] = (kind, Field(default, alias=name))
    config = ConfigDict(extra="forbid", strict=True)
    return create_model(getattr(function, "__name__", "Parameters"), __config__=config, **fields)


def given(model: BaseModel) -> dict[str, Any]:
    """The parameters that were given, to call the function with; its own defaults are used for the others."""
    return {name.removeprefix(_PREFIX): getattr(model, name) for name in model.model_fields_set}
