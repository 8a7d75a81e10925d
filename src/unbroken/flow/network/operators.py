"""The operators that a network can use, by the names it uses them under."""

from __future__ import annotations

from unbroken.flow.network.base import Operator
from unbroken.flow.network.custom import Custom
from unbroken.flow.network.join import Join
from unbroken.flow.network.row_operators import Dup, Filter, Map, Union
from unbroken.flow.network.state_operators import Aggregate, Count, Uniq

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
