"""Values of any type that can be written, made from its annotations."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from unbroken.codecs.derivation import concrete
from unbroken.protocol.values.consistency import DelayBound, Reconcile
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.ingress_log import Admission
from unbroken.protocol.values.notices import Notice, Severity, UnknownNotice, known_kinds
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.security.secret import Secret
from unbroken.transport.state.pins import EMPTY_SHA256, Manifest, PinnedFile

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_@~-]{0,12}", fullmatch=True)
SHARDS = st.builds(ShardId, NAMES, st.integers(0, 255))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
FINITE = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS
UNKNOWN_NOTICES = st.builds(
    lambda kind, fields, severity: UnknownNotice(f"later_{kind}", json.dumps(fields, sort_keys=True), severity),
    NAMES,
    st.dictionaries(TEXTS, FINITE | st.lists(FINITE, max_size=3) | st.floats(-1e300, 1e300), max_size=3),
    st.sampled_from(Severity),
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    str: TEXTS,
    bool: st.booleans(),
    bytes: st.binary(max_size=50),
    type(None): st.none(),
    Any: JSON,
    ShardId: SHARDS,
    ReplicaId: st.builds(ReplicaId, SHARDS, st.integers(0, 255)),
    StreamId: st.builds(StreamId, SHARDS, SHARDS),
    Path: NAMES.map(Path),
    PinnedFile: NAMES.map(lambda name: PinnedFile(name, 0, EMPTY_SHA256)),
    Manifest: st.builds(
        lambda pin, names, version, admission: Manifest(
            pin, tuple(PinnedFile(name, 0, EMPTY_SHA256) for name in sorted(names)), version, admission
        ),
        st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
        st.sets(NAMES, max_size=3),
        st.integers(0, 2**63),
        st.none() | st.builds(Admission, NAMES, *[st.integers(0, 2**63)] * 3, TEXTS),
    ),
    Secret: st.builds(Secret, st.sampled_from(("env", "file")), NAMES),
    Strategy: st.builds(
        Strategy,
        st.sampled_from(Ha),
        st.integers(0, 5),
        st.integers(1, 9),
        st.floats(0, 1e9),
        st.booleans(),
        st.booleans(),
    ),
    DelayBound: st.builds(
        DelayBound,
        max_delay_ms=st.floats(0.001, 1e9),
        alpha=st.floats(0.001, 0.999),
        reconcile=st.sampled_from(Reconcile),
    ),
}


@cache
def values(annotation: Any, *, readable: bool) -> st.SearchStrategy[Any]:
    """Values of an annotation; JSON has no float that is not finite."""

    def of(inner: Any) -> st.SearchStrategy[Any]:
        return values(inner, readable=readable)

    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is float:
        return st.floats(allow_nan=False, allow_infinity=not readable)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation is Notice:
        kinds = [kind for kind in known_kinds().values() if kind is not UnknownNotice]
        return st.one_of(UNKNOWN_NOTICES, st.sampled_from(kinds).flatmap(of))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([of(each) for each in concrete(arguments)])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*(of(each) for each in arguments))
    if origin in (tuple, Sequence):
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin is list:
        return st.lists(of(arguments[0]), max_size=3)
    if origin is frozenset:
        return st.frozensets(of(arguments[0]), max_size=3)
    if origin in (dict, Mapping):
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    assert is_dataclass(annotation) and isinstance(annotation, type), f"no values of {annotation}"
    kind = annotation

    @st.deferred
    def made() -> st.SearchStrategy[Any]:
        hints = get_type_hints(kind)
        return st.builds(kind, **{each.name: of(hints[each.name]) for each in fields(kind) if each.init})

    return made
