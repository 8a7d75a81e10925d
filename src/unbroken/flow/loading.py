"""From a user's file to the dataflow that it declares, or the line that is wrong."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from operator import attrgetter
from pathlib import Path

from pyspark import cloudpickle

from unbroken.errors import FlowError, Problem, UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.early_functions import functions_before_spark
from unbroken.flow.network import is_network
from unbroken.flow.network.build import load_network
from unbroken.wording import choices


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
    if isinstance(error, UnbrokenError) and error.remedy:
        return Problem(f"{path}:{lines[-1]}", error.what, error.remedy)
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
