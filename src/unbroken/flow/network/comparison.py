"""What differs between two texts of a network, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbroken.flow.network.document import NotYaml, read_document
from unbroken.flow.network.mistakes import Mistakes
from unbroken.flow.network.parts import read_operator, section


def pieces(text: str) -> Mapping[str, Any] | None:
    """The operators of a network by name, and all the rest under the empty name, in a form that can be compared.

    Operators are compared by what they mean: comments, formatting, the order of keys and values that are the default
    do not count. The order of columns does, where it is that of the result. None if the text is not a network.
    """
    try:
        document, _ = read_document(text)
    except NotYaml:
        return None
    plain = document.plain()
    if not isinstance(plain, dict):
        return None
    ignored = Mistakes("")
    out: dict[str, Any] = {"": {key: value for key, value in plain.items() if key != "operators"}}
    for name, entry in section(document, "operators").items():
        _, declared = read_operator(name, entry, ignored)
        if declared is None:
            out[name] = repr(entry.value.plain())
        else:
            parameters = declared.operator.model_dump_json()
            out[name] = (declared.kind, declared.inputs, parameters, dict(declared.options))
    return out
