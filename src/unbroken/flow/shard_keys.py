"""By which columns the rows of a segment may be split, given which rows its operators bring together.

A shard sees all rows with equal shard columns. An operator that keeps state sees all rows with equal keys only if each
shard column is one of its keys: then rows with equal keys have equal shard columns. Anything else, such as a sum by
shop of rows that are split by customer, gives every shard a part of the result, alike on all replicas, so that no
comparison of replicas notices it.

A shard column is one column of each input, hashed at the same place (a *position*): of two inputs that are joined, the
columns that the join compares. Every position is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from unbroken.data.sharding import EVERYTHING

Origin = frozenset[tuple[str, str]]
"""Where the values of a column come from, unchanged: of each input that its rows come from, the name of one column."""

ShardBy = Mapping[str, tuple[str, ...]]
"""The shard columns of each input."""

MOST_POSITIONS = 1_000
"""Combinations of keys that are followed; a segment that has more of them has to name its columns itself."""

ONE_SHARD = "use one shard (leave shards out)"


@dataclass(frozen=True)
class Need:
    """An operator that has to see all rows with equal keys, by the name that its author knows it by.

    ``offers`` are its keys that are columns of the inputs: rows may be split by any of them. If there is none, ``why``
    says so, as a clause behind the operator's name, and ``remedy`` what to do.
    """

    operator: str
    offers: tuple[Origin, ...]
    why: str = ""
    remedy: str = ONE_SHARD


def merged(first: Origin | None, second: Origin | None) -> Origin | None:
    """The origin of a column whose rows come from both; None if that differs for the rows of one input."""
    if first is None or second is None:
        return None
    both = first | second
    return both if len({name for name, _ in both}) == len(both) else None


def parted(needs: Iterable[Need], shard_by: ShardBy) -> list[Need]:
    """The operators that would not see all rows with equal keys, if rows are split by these columns."""
    named = {name: columns for name, columns in shard_by.items() if columns != (EVERYTHING,)}
    positions = [frozenset(zip(named, columns, strict=True)) for columns in zip(*named.values(), strict=True)]
    positions = positions or [frozenset()]
    return [
        need for need in needs if not all(any(offer <= position for offer in need.offers) for position in positions)
    ]


@dataclass(frozen=True)
class Underivable:
    """Why no columns can be found, and what the author can do about it."""

    why: str
    remedy: str


def derived(
    needs: Sequence[Need], inputs: Sequence[str], fit: Callable[[Origin], bool]
) -> dict[str, tuple[str, ...]] | Underivable:
    """The columns by which every input can be split: all that suit every operator, and of which ``fit`` is true.

    An input whose rows reach no such operator is split by everything that its rows hold.
    """
    if not needs:
        return dict.fromkeys(inputs, (EVERYTHING,))
    hopeless = next((need for need in needs if not need.offers), None)
    if hopeless is not None:
        return Underivable(f"{hopeless.operator} {hopeless.why}", hopeless.remedy)
    positions: list[Origin] = [frozenset()]
    for need in needs:
        found = [merged(position, offer) for position in positions for offer in need.offers]
        positions = list(dict.fromkeys(position for position in found if position is not None))
        if not positions:
            others = ", ".join(dict.fromkeys(other.operator for other in needs))
            why = f"{others} have no key in common by which rows could be split"
            return Underivable(why, f"put them into segments of their own, or {ONE_SHARD}")
        if len(positions) > MOST_POSITIONS:
            return Underivable(f"{need.operator} has too many keys to choose from", "name columns: shard_by=['column']")
    suitable = [position for position in positions if fit(position)]
    if not suitable:
        names = ", ".join(sorted({column for position in positions for _, column in position}))
        why = f"rows belong together by {names}, of a type that rows are not split by unasked or that differs by input"
        return Underivable(why, f"cast them in a segment before, name the columns in shard_by, or {ONE_SHARD}")
    covered = {name for name, _ in suitable[0]}
    chosen = [dict(position) for position in suitable if {name for name, _ in position} == covered]
    # By name: rows stay in their shards when a file is edited to name the same keys in another order.
    chosen.sort(key=lambda position: [position[name] for name in inputs if name in covered])
    return {name: tuple(position[name] for position in chosen) if name in covered else (EVERYTHING,) for name in inputs}


def written(shard_by: ShardBy) -> str:
    """Shard columns as a flow's file has them."""
    if len(set(shard_by.values())) == 1:
        return f"shard_by={list(next(iter(shard_by.values())))}"
    return f"shard_by={ {name: list(columns) for name, columns in shard_by.items()} }"


def described(shard_by: ShardBy) -> str:
    """For people: by which columns the rows of each input are split."""
    shown = {name: "all values" if it == (EVERYTHING,) else ", ".join(it) for name, it in shard_by.items()}
    if len(set(shown.values())) == 1:
        return f"rows are split by {next(iter(shown.values()))}"
    return f"rows are split by {'; '.join(f'{it} of {name}' for name, it in shown.items())}"
