"""What may not occur in a segment, why replicas would differ, and what to use instead.

Keys are the simple names of Spark's expression classes, because Spark itself marks only part of these as
non-deterministic: the clock and aggregates that depend on the order of rows pass as deterministic there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why something makes replicas differ and what the user can do instead."""

    why: str
    remedy: str


_RANDOM = Refusal(
    "random values differ between replicas; a seed does not help, because it is combined with the number of "
    "the partition a row happens to be in",
    "derive the value from the row itself, such as xxhash64(key columns), or draw it at the source",
)
_CLOCK = Refusal(
    "each replica reads its own clock when its micro-batch starts",
    'declare cut_time="name" on the segment: it adds the time at which the unit was cut as a timestamp '
    "column, the same on every replica",
)
_PARTITION = Refusal(
    "which partition a row is in, and at which place, differs between replicas",
    "number rows at the source, or identify them by their content: xxhash64(key columns)",
)
_FILE = Refusal(
    "rows reach a replica as units; the file they are read from differs between replicas",
    "add the file's name as a column at the source",
)
_USER = Refusal(
    "nodes may run as different users",
    "use a literal, or a column that the source fills",
)
_ANY_ROW = Refusal(
    "the row it picks depends on the order in which a shuffle delivers rows",
    "use min_by(value, order column) or max_by(value, order column), or min/max of the value",
)
_COLLECTED = Refusal(
    "the order of the elements depends on the order in which a shuffle delivers rows",
    "sort it: sort_array(collect_list(x)) or sort_array(collect_set(x))",
)
_JOINED = Refusal(
    "the order of the parts depends on the order in which a shuffle delivers rows",
    "order it: listagg(x, ',') WITHIN GROUP (ORDER BY x), or array_join(sort_array(collect_list(x)), ',')",
)
_SKETCH = Refusal(
    "the sketch it approximates with depends on the order in which a shuffle delivers rows",
    "use an exact aggregate: percentile(x, p) or median(x), or count per group; approx_count_distinct is "
    "accepted, as it does not depend on order",
)
_TIE = Refusal(
    "of several values that are equally frequent it takes any",
    "use mode(x, true), which takes the smallest of them",
)

BY_CLASS: dict[str, Refusal] = {
    **dict.fromkeys(("Rand", "Randn", "Uniform", "RandStr", "Uuid", "Shuffle"), _RANDOM),
    **dict.fromkeys(
        ("CurrentTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp", "CurrentBatchTimestamp"),
        _CLOCK,
    ),
    **dict.fromkeys(("MonotonicallyIncreasingID", "SparkPartitionID"), _PARTITION),
    **dict.fromkeys(("InputFileName", "InputFileBlockStart", "InputFileBlockLength"), _FILE),
    "CurrentUser": _USER,
    **dict.fromkeys(("First", "Last", "AnyValue"), _ANY_ROW),
    **dict.fromkeys(("CollectList", "CollectSet"), _COLLECTED),
    "ListAgg": _JOINED,
    "Mode": _TIE,
    **dict.fromkeys(
        (
            "ApproximatePercentile",
            "HistogramNumeric",
            "ApproxTopK",
            "ApproxTopKAccumulate",
            "ApproxTopKCombine",
            "HllSketchAgg",
            "HllUnionAgg",
            "KllSketchAggBigint",
            "KllSketchAggFloat",
            "KllSketchAggDouble",
        ),
        _SKETCH,
    ),
}

# Functions of an array that give the same result whatever the order of its elements.
ORDER_BLIND = frozenset({"SortArray", "ArraySort", "Size", "ArraySize", "ArrayContains", "ArrayMin", "ArrayMax"})

SAMPLED = Refusal(
    "which rows are taken depends on the partitions and on the order of rows, with a seed too",
    "filter by the content of rows: where(pmod(xxhash64(key columns), 100) < 10) takes about 10 percent",
)
LIMITED = Refusal(
    "which rows come first depends on the order in which they arrive",
    "filter by a condition on columns",
)
PROCESSING_TIME = Refusal(
    "timers that follow the clock fire in different micro-batches on different replicas",
    "use event time with a watermark: EventTimeTimeout, or timeMode='eventTime'",
)
AES_RANDOM = Refusal(
    "without an initialisation vector it makes up a random one for every row",
    "give the vector as an argument, derived from the row, or encrypt in the sink",
)
PYTHON_FUNCTION = Refusal(
    "the function is marked as non-deterministic",
    "make its result depend on its arguments only, then drop asNondeterministic()",
)
PYTHON_TABLE_FUNCTION = Refusal(
    "Spark takes Python table functions as non-deterministic unless told otherwise",
    "if its result depends on its arguments only, say so with asDeterministic()",
)
OTHERWISE = Refusal(
    "Spark marks it as non-deterministic: the same rows may give another result on another replica",
    "compute it at the source, or replace it by something that depends on the row's columns only",
)
