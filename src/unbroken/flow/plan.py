"""From a declared dataflow to its topology, refusing what cannot work before anything is started."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from pathlib import Path

from pyspark import cloudpickle

from unbroken.errors import FlowError, Problem, UnbrokenError
from unbroken.flow.availability import availability_problems, available_segments
from unbroken.flow.dataflow import OUTPUT_MODES, Dataflow, Segment
from unbroken.flow.early_functions import functions_before_spark
from unbroken.flow.network import is_network
from unbroken.flow.ordering import bucketed, led_segments, ordering_problems
from unbroken.flow.redundancy import pair_problems, redundancy_problems
from unbroken.flow.tracing import tracing_problems
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.wording import choices

MAX_SHARDS = 256


def load_flow(path: Path, named: str | None = None) -> Dataflow:
    """The one ``Dataflow`` that the user's file declares; of several the one that is ``named``."""
    if not path.is_file():
        raise FlowError([Problem(str(path), "there is no such file", "give the path of a Python or YAML file")])
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise FlowError([Problem(str(path), f"this is not text: {error}", "save the file as UTF-8")]) from None
    return load_text(path, text, named=named)


def load_text(path: Path, text: str, generation: int = 1, named: str | None = None) -> Dataflow:
    """Run the text of a user's file, which may have changed since; generations of it are modules of their own.

    The one place where a file becomes a dataflow, whether it is Python or an operator network.
    """
    with functions_before_spark():
        if not is_network(path):
            return _load_python(path, text, generation, named)
        from unbroken.flow.network.build import load_network  # It needs this module, and most flows do not need it.

        return load_network(path, text, generation)


def _load_python(path: Path, text: str, generation: int, named: str | None) -> Dataflow:
    where = str(path)
    name = f"unbroken_flow_{path.stem}" if generation == 1 else f"unbroken_flow_{path.stem}_{generation}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None:
        raise FlowError([Problem(where, "this is not a Python file", "give a file that ends in .py, .yaml or .yml")])
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Spark's Python processes cannot import it by this name: functions have to travel with all that they use of it.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        exec(compile(text, str(path.resolve()), "exec"), module.__dict__)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        raise FlowError([_failure(path, error)]) from error
    flows = {id(value): value for value in vars(module).values() if isinstance(value, Dataflow)}
    if named is not None:
        flows = {key: flow for key, flow in flows.items() if flow.name == named}
    if len(flows) != 1:
        which = "" if named is None else f" called {named!r}"
        what = f"no Dataflow{which} is declared" if not flows else f"{len(flows)} Dataflows{which} are declared"
        raise FlowError([Problem(where, what, "declare exactly one at the top level: flow = Dataflow('name')")])
    return next(iter(flows.values()))


def _failure(path: Path, error: BaseException) -> Problem:
    """What went wrong while a user's file was run, and the line of the file that it was in."""
    here = str(path.resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
    if isinstance(error, SyntaxError) and error.filename == here:
        lines.append(error.lineno)
    what = f"the file failed while it was loaded: {type(error).__name__}: {error}"
    if not lines or lines[-1] is None:
        return Problem(str(path), what, "run it with python to see where")
    if isinstance(error, UnbrokenError) and "; " in str(error):
        what, _, remedy = str(error).partition("; ")
        return Problem(f"{path}:{lines[-1]}", what, remedy.rstrip("."))
    if _needs_spark(error):
        what = "the file uses Spark while it is loaded, before Spark is started"
        remedy = "make columns (F.col, F.lit, F.expr, Window) inside of the functions of segments"
        return Problem(f"{path}:{lines[-1]}", what, f"{remedy}; functions (F.udf) may stay where they are")
    remedy = f"{_argument_help(error) or 'correct that line'}; or run it with python to see more"
    return Problem(f"{path}:{lines[-1]}", what, remedy)


def _needs_spark(error: BaseException) -> bool:
    """Whether PySpark has failed for want of a session; in some places it merely asserts that there is one."""
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _argument_help(error: BaseException) -> str:
    """What a function of the package takes, if the failure is an argument that it does not take."""
    found = re.match(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not isinstance(error, TypeError) or found is None:
        return ""
    import unbroken  # Its names are those that a flow is written with.

    try:
        parameters = inspect.signature(attrgetter(found[1])(unbroken)).parameters
    except (AttributeError, TypeError, ValueError):
        return ""
    taken = [name for name, it in parameters.items() if name != "self" and it.kind is not it.VAR_POSITIONAL]
    return choices(taken, found[2])


def build_topology(flow: Dataflow, nodes: int | None = None) -> Topology:
    """The flow's shards and streams; raises with every problem that can be seen without Spark."""
    problems = [*_part_problems(flow), *_segment_problems(flow, nodes or flow.settings.nodes), *pair_problems(flow)]
    problems += [*ordering_problems(flow), *availability_problems(flow), *tracing_problems(flow.where, flow.settings)]
    order = _order(flow, problems)
    if problems:
        raise FlowError(problems)
    edges = [(name, segment.name) for segment in flow.segments.values() for name in dict.fromkeys(segment.inputs)]
    edges += [(sink.input, sink.name) for sink in flow.sinks.values()]
    strategies = {name: segment.strategy() for name, segment in flow.segments.items()}
    replicas = {name: strategy.running for name, strategy in strategies.items()}
    replicas[INGRESS.part] = max(strategy.nodes for strategy in strategies.values())
    available = available_segments(flow)
    return Topology(
        sources=tuple(flow.sources),
        segments={name: flow.segments[name].shards for name in order},
        sinks=tuple(flow.sinks),
        edges=tuple(edges),
        replicas=replicas,
        client_sinks=frozenset(name for name, sink in flow.sinks.items() if sink.connector.client),
        strategies=strategies,
        at_most_once=flow.settings.guarantee == "at-most-once",
        whole=flow.settings.pairs == "cluster",
        led=led_segments(flow),
        bucketed=bucketed(flow),
        availability={name: how.protocol() for name, how in available.items()},
        tentative_sinks=frozenset(
            name for name, sink in flow.sinks.items() if sink.connector.tentative and sink.input in available
        ),
    )


def _part_problems(flow: Dataflow) -> list[Problem]:
    out: list[Problem] = []
    if not flow.sources:
        out.append(Problem(flow.where, "the dataflow has no source", "declare one: flow.source(name, ...)"))
    if not flow.segments:
        out.append(Problem(flow.where, "the dataflow has no segment", "declare one: @flow.segment(source)"))
    if not flow.sinks:
        out.append(Problem(flow.where, "the dataflow has no sink", "declare one: flow.sink(name, segment, ...)"))
    declared = [(source.where, source.connector.problems()) for source in flow.sources.values()]
    declared += [(sink.where, sink.connector.problems()) for sink in flow.sinks.values()]
    for where, sentences in declared:
        for sentence in sentences:
            what, _, remedy = sentence.partition("; ")
            out.append(Problem(where, what, remedy or "correct the declaration"))
    for sink in flow.sinks.values():
        if sink.input not in flow.segments:
            known = ", ".join(flow.segments) or "none"
            out.append(Problem(sink.where, f"there is no segment {sink.input!r}", f"segments: {known}"))
        if flow.settings.guarantee == "exactly-once" and not sink.connector.idempotent:
            kind = type(sink.connector).__name__
            what = f"{kind} cannot tell a unit that it was given before, so guarantee='exactly-once' cannot be kept"
            remedy = "use a sink with a ledger such as Parquet, or say guarantee='at-least-once' or 'at-most-once'"
            out.append(Problem(sink.where, what, remedy))
    return out


def _segment_problems(flow: Dataflow, nodes: int) -> list[Problem]:
    out: list[Problem] = []
    known = {*flow.sources, *flow.segments}
    used = {name for segment in flow.segments.values() for name in segment.inputs}
    used |= {sink.input for sink in flow.sinks.values()}
    for segment in flow.segments.values():
        where = segment.where
        if not segment.inputs:
            out.append(Problem(where, "the segment has no input", "name a source or segment it reads"))
        for name in segment.inputs:
            if name not in known:
                out.append(Problem(where, f"its input {name!r} is not declared", f"declared: {sorted(known)}"))
        out += _range_problems(segment, nodes)
        out += _key_problems(segment)
        if segment.name not in used:
            what = "nobody reads the result of this segment"
            out.append(Problem(where, what, "connect it to a sink or another segment, or remove it"))
    for source in flow.sources.values():
        if source.name not in used:
            out.append(Problem(source.where, "no segment reads this source", "connect it or remove it"))
    return out


def _range_problems(segment: Segment, nodes: int) -> list[Problem]:
    out: list[Problem] = []
    if not _in_range(segment.shards, MAX_SHARDS):
        what = f"shards={segment.shards!r} is out of range"
        out.append(Problem(segment.where, what, f"use 1 to {MAX_SHARDS}"))
    out += redundancy_problems(segment, nodes)
    if segment.output_mode not in OUTPUT_MODES:
        what = f"output_mode={segment.output_mode!r} is not supported"
        remedy = f"use one of {OUTPUT_MODES}; 'complete' would resend the whole result in every unit"
        out.append(Problem(segment.where, what, remedy))
    return out


def _in_range(value: object, most: int) -> bool:
    """Whether a number that a user wrote is a whole one from 1 to ``most``; users write what they like."""
    return type(value) is int and 1 <= value <= most


def _key_problems(segment: Segment) -> list[Problem]:
    out: list[Problem] = []
    for name in segment.shard_by:
        if name not in segment.inputs:
            what = f"shard_by names {name!r}, which is not an input"
            out.append(Problem(segment.where, what, f"inputs: {', '.join(segment.inputs)}"))
    if _in_range(segment.shards, MAX_SHARDS) and segment.shards > 1 and segment.routing != "primary":
        missing = [name for name in segment.inputs if not segment.shard_by.get(name)]
        if missing and any(segment.shard_by.values()):
            what = f"shards={segment.shards}, but shard_by does not say how rows of {missing} are split"
            out.append(Problem(segment.where, what, "name the key columns of every input, or leave shard_by out"))
        widths = {len(columns) for columns in segment.shard_by.values()}
        if len(widths) > 1:
            what = "shard_by has different numbers of columns for different inputs"
            out.append(Problem(segment.where, what, "rows that belong together must hash alike: use equal keys"))
    return out


def _order(flow: Dataflow, problems: list[Problem]) -> list[str]:
    """Segments in the order in which data passes them."""
    graph = {name: set(segment.inputs) & set(flow.segments) for name, segment in flow.segments.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        loop = [str(name) for name in error.args[1]]
        what = f"the segments form a cycle: {' -> '.join(loop)}"
        remedy = "a dataflow has no loops; feed results back through an outside system such as files or Kafka"
        problems.append(Problem(flow.segments[loop[0]].where, what, remedy))
        return []
