"""The operators that a network can use, by the names it uses them under."""

from __future__ import annotations

from unbroken.network.base import Operator
from unbroken.network.custom import Custom
from unbroken.network.join import Join
from unbroken.network.rowwise import Dup, Filter, Map, Union
from unbroken.network.stateful import Aggregate, Count, Uniq

OPERATORS: dict[str, type[Operator]] = {
    "filter": Filter,
    "map": Map,
    "union": Union,
    "dup": Dup,
    "count": Count,
    "uniq": Uniq,
    "aggregate": Aggregate,
    "join": Join,
    "custom": Custom,
}
