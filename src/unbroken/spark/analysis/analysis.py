"""What Spark says of a dataflow before it runs: schemas, and everything that must be refused."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unbroken.connectors.location import unclear
from unbroken.data.schema import arrow_schema, check_names
from unbroken.data.sharding import EVERYTHING, check_key_type, key_columns_of
from unbroken.errors import FlowError, Problem, UnbrokenError
from unbroken.flow.dataflow import Dataflow, Segment
from unbroken.flow.shard_keys import ShardBy
from unbroken.protocol.values.strategy import STATELESS
from unbroken.spark.analysis.determinism import find_nondeterminism
from unbroken.spark.analysis.horizon import (
    Horizon,
    Unbounded,
    find_horizon,
    has_watermark,
    horizon_of,
    is_rebuilt,
    unbounded_problem,
)
from unbroken.spark.analysis.lineage import INPUT, SEGMENT, foreign_streams
from unbroken.spark.analysis.splitting import splitting
from unbroken.spark.master import is_local
from unbroken.spark.segment_call import SideEffect, call
from unbroken.spark.snapshots import unknown_scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Analysis:
    """The schema of every source's and segment's rows.

    ``horizons`` says how far back the state of each segment reaches that can be built again from what is kept of its
    input. ``stateful`` are the segments whose state executors would have to write, if the session has executors.
    ``shard_by`` has the columns by which the inputs of segments are split whose authors named none.
    """

    schemas: Mapping[str, StructType]
    horizons: Mapping[str, Horizon] = field(default_factory=dict)
    stateful: frozenset[str] = frozenset()
    shard_by: Mapping[str, ShardBy] = field(default_factory=dict)


def input_schema(schema: StructType, cut_time: str | None) -> StructType:
    """What a segment sees of an input: its columns, all nullable, and, if asked for, the cut time."""
    from pyspark.sql.types import StructType, TimestampType

    out = StructType()
    for column in schema.fields:
        out.add(column.name, column.dataType, True)
    return out.add(cut_time, TimestampType(), True) if cut_time else out


def analyse(flow: Dataflow, order: tuple[str, ...], session: SparkSession) -> Analysis:
    """Derive all schemas in dataflow order; raises with every problem found on the way.

    A segment behind a broken one is left out: its own problems would only be echoes.
    """
    schemas: dict[str, StructType] = {name: source.connector.schema for name, source in flow.sources.items()}
    horizons: dict[str, Horizon] = {}
    stateful: set[str] = set()
    shard_by: dict[str, ShardBy] = {}
    remote = not is_local(session.sparkContext.master)
    problems = _snapshot_problems(flow, session)
    for name in order:
        segment = flow.segments[name]
        if all(part in schemas for part in segment.inputs):
            found, frame = _analyse_segment(segment, schemas, session)
            problems += found
            if frame is None:
                continue
            schemas[name] = frame.schema
            if not _key_problems(segment, schemas):
                split = splitting(segment, frame, {part: schemas[part] for part in segment.inputs})
                problems += split.problems
                shard_by |= {name: split.derived} if split.derived else {}
            if remote and _has_state(frame):
                stateful.add(name)
            if is_rebuilt(segment):
                horizon = horizon_of(segment, frame)
                if isinstance(horizon, Unbounded):
                    problems.append(unbounded_problem(segment, horizon))
                else:
                    horizons[name] = horizon
    if problems:
        raise FlowError(problems)
    return Analysis(schemas, horizons, frozenset(stateful), shard_by)


def _analyse_segment(
    segment: Segment, schemas: Mapping[str, StructType], session: SparkSession
) -> tuple[list[Problem], DataFrame | None]:
    problems = _cut_time_problems(segment, schemas)
    if problems:
        return problems, None
    problems = _key_problems(segment, schemas)
    inputs = [_placeholder(session, segment, name, schemas[name]) for name in segment.inputs]
    frame, failure = _call(segment, inputs, schemas)
    if frame is None:
        return [*problems, *([failure] if failure else [])], None
    problems += _foreign_problems(segment, frame)
    problems += [
        Problem(segment.where, f"{finding.expression}: {finding.why}", finding.remedy)
        for finding in find_nondeterminism(frame)
    ]
    if not problems:  # Spark refuses some of these, too, in words that lead elsewhere
        problems += _mode_problems(segment, frame, session)
    try:
        check_names(frame.schema)
    except UnbrokenError as error:
        problems.append(Problem(segment.where, error.what, error.remedy))
    return problems, frame


def _placeholder(session: SparkSession, segment: Segment, name: str, schema: StructType) -> DataFrame:
    """An input that is never read, and that a plan can be seen to come from."""
    reader = session.readStream.format("unbroken").schema(input_schema(schema, segment.cut_time))
    known = {INPUT: name, SEGMENT: segment.name}
    return reader.options(gate="", secret="", replica="", inbox="", streams="", **known).load()


def _snapshot_problems(flow: Dataflow, session: SparkSession) -> list[Problem]:
    """A place for snapshots that Spark could not write to would be noticed when they are needed."""
    url = flow.settings.snapshots
    if url is not None:
        for flaw in unclear(url, "the place of snapshots"):
            return [flaw.at(flow.where)]
    why = None if url is None else unknown_scheme(url, session)
    if why is None:
        return []
    remedy = "give a directory that all nodes share, or add the store's jars: spark={'spark.jars.packages': ...}"
    return [Problem(flow.where, f"Spark cannot write snapshots to {url}: {why}", remedy)]


def _foreign_problems(segment: Segment, frame: DataFrame) -> list[Problem]:
    """Streams of its own would be read by each replica for itself, in batches that no other one has."""
    return [
        Problem(
            segment.where,
            f"the function reads a stream of its own ({kind}), of which every replica would see other micro-batches",
            "declare it with flow.source(name, connector) and name it among the segment's inputs",
        )
        for kind in foreign_streams(frame, segment.name)
    ]


def _call(
    segment: Segment, inputs: list[DataFrame], schemas: Mapping[str, StructType]
) -> tuple[DataFrame | None, Problem | None]:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame

    signature = inspect.signature(segment.function)
    try:
        signature.bind(*inputs)
    except TypeError:
        what = f"the function takes {len(signature.parameters)} arguments, but the segment has {len(inputs)} inputs"
        return None, Problem(segment.where, what, "give it one parameter per input, in the same order")
    columns = "; ".join(f"{name}({', '.join(schemas[name].names)})" for name in segment.inputs)
    try:
        frame = call(segment, inputs)
    except SideEffect as error:
        return None, Problem(segment.where, error.what, error.remedy)
    except AnalysisException as error:
        if "writeStream.start()" in str(error):
            what = "the function asks for rows of its inputs (as count, collect and show do), which are streams"
            return None, Problem(segment.where, what, "return a DataFrame that describes the result, and nothing else")
        what = f"Spark cannot analyse the segment: {_first_line(error)}"
        return None, Problem(segment.where, what, f"its inputs have these columns: {columns}")
    except Exception as error:
        told = f": {_first_line(error)}" if str(error).strip() else ""
        what = f"the function failed: {type(error).__name__}{told}"
        return None, Problem(segment.where, what, f"its inputs have these columns: {columns}")
    if not isinstance(frame, DataFrame):
        what = f"the function returned {type(frame).__name__}, not a DataFrame"
        return None, Problem(segment.where, what, "return the streaming DataFrame that the segment computes")
    if not frame.isStreaming:
        what = "the function returned a DataFrame that does not come from its inputs"
        return None, Problem(segment.where, what, "derive the result from the DataFrames passed in")
    return frame, None


def _key_problems(segment: Segment, schemas: Mapping[str, StructType]) -> list[Problem]:
    out: list[Problem] = []
    shapes: dict[str, list[str]] = {}
    for name, columns in segment.shard_by.items():
        schema = schemas[name]
        if columns == (EVERYTHING,):
            if not key_columns_of(arrow_schema(schema), columns):
                what = f"rows of {name} are to be split by their values, and it has no column that is fit for that"
                out.append(Problem(segment.where, what, "add a column that is not floating-point and not nested"))
            continue
        for column in columns:
            if column not in schema.names:
                what = f"shard_by names column {column!r}, which {name} does not have"
                out.append(Problem(segment.where, what, f"columns of {name}: {', '.join(schema.names)}"))
                continue
            try:
                check_key_type(column, schema[column].dataType)
            except UnbrokenError as error:
                out.append(Problem(segment.where, str(error), "shard by other columns, or cast this one"))
            shapes.setdefault(name, []).append(schema[column].dataType.simpleString())
    if not out and len({tuple(shape) for shape in shapes.values()}) > 1:
        what = f"the shard_by columns of its inputs disagree in type: {shapes}"
        out.append(Problem(segment.where, what, "equal keys must hash alike: cast them to the same types"))
    return out


def _has_state(frame: DataFrame) -> bool:
    return find_horizon(frame) != Horizon(STATELESS, timed=has_watermark(frame))


def _cut_time_problems(segment: Segment, schemas: Mapping[str, StructType]) -> list[Problem]:
    wanted = (segment.cut_time or "").lower()  # Spark does not tell upper from lower case
    taken = [name for name in segment.inputs if wanted in {column.lower() for column in schemas[name].names}]
    if not taken:
        return []
    what = f"cut_time={segment.cut_time!r} is already a column of {', '.join(taken)}"
    return [Problem(segment.where, what, "choose another name for the cut time")]


def _mode_problems(segment: Segment, frame: DataFrame, session: SparkSession) -> list[Problem]:
    """Ask Spark's own checker whether it can run this plan in this output mode."""
    from pyspark.errors import AnalysisException

    jvm: Any = session._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, segment.output_mode.capitalize())()
    plan = frame._jdf.queryExecution().analyzed()
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        what = f"Spark cannot run it in output mode {segment.output_mode!r}: {_first_line(error)}"
        return [Problem(segment.where, what, "change output_mode, or add a watermark where Spark asks for one")]
    return []


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
