"""A user's flow with the input and the sinks of a test in place of its own; the user's file stays as it is.

Nodes are other processes: they cannot be handed a dataflow, only a file to load. So each run has a small file of its
own that loads the user's and puts the test's sources and sinks in.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_flow
from unbroken.flow.settings import load_settings
from unbroken.testing.input.files import RunFiles
from unbroken.testing.input.kept_units import KeepingSink
from unbroken.testing.input.playback import Played
from unbroken.testing.input.script import Script

TEXT = '''"""{file} with the input of a test in place of its sources and sinks; made by unbroken.testing."""

from pathlib import Path

from unbroken.testing.input.substitution import load_substituted

flow = load_substituted(Path({root!r}))
'''


def find_flow(given: str | os.PathLike[str] | Dataflow) -> tuple[Path, str | None, Dataflow]:
    """The file that declares a flow, the name of the flow in it if that has to be said, and the flow.

    Raises UnbrokenError if no other process could get the flow from a file.
    """
    if not isinstance(given, Dataflow):
        path = Path(given).resolve()
        return path, None, load_flow(path)
    file, _, line = given.where.rpartition(":")
    path = Path(file).resolve()
    if not _at_top_level(given, path):
        raise UnbrokenError(
            f"dataflow {given.name!r}, declared at {path}:{line}, is no name at the top level of that file, so nodes "
            "cannot load it: they are other processes. Declare it there, as flow = Dataflow(...), or in a file of its "
            "own, and give run_with_faults the path of the file."
        )
    return path, given.name, given


def _at_top_level(flow: Dataflow, path: Path) -> bool:
    """Whether a module that was loaded from ``path`` has the flow under some name."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).name == path.name and Path(file).resolve() == path:
            return any(value is flow for value in vars(module).values())
    return False


def substitute(flow: Dataflow, scripts: Mapping[str, Script], settings: Mapping[str, Any], root: Path) -> Dataflow:
    """A copy of ``flow`` whose sources play the input in ``root`` and whose sinks keep what comes in there."""
    changed = copy.copy(flow)
    files = RunFiles(root)
    values = {**flow.settings.model_dump(exclude_unset=True), **settings}
    changed.settings = load_settings(f"{flow.where}, dataflow {flow.name}", values)
    changed.sources = {
        name: replace(source, connector=Played(name, source.connector.schema, scripts[name], root))
        for name, source in flow.sources.items()
    }
    changed.sinks = {
        name: replace(sink, connector=KeepingSink(files.results(name), sink.connector))
        for name, sink in flow.sinks.items()
    }
    return changed


def write_flow(
    files: RunFiles, file: Path, named: str | None, settings: Mapping[str, Any], scripts: Mapping[str, Script]
) -> None:
    """Write what `load_substituted` loads."""
    described = {name: script.to_json() for name, script in scripts.items()}
    files.write_run({"flow": str(file), "named": named, "settings": dict(settings), "scripts": described})
    files.flow.write_text(TEXT.format(file=file.name, root=str(files.root)))


def load_substituted(root: Path) -> Dataflow:
    """What a node runs in a test; called by the file that `write_flow` wrote."""
    run = RunFiles(root).read_run()
    scripts = {name: Script.from_json(script) for name, script in run["scripts"].items()}
    return substitute(load_flow(Path(run["flow"]), run["named"]), scripts, run["settings"], root)
