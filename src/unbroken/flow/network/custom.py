"""The operator whose function the user writes in Python, and how that is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import zlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator
from pyspark import cloudpickle

from unbroken.errors import UnbrokenError, WrongValue
from unbroken.flow.network.base import Operator, OperatorPlace

if TYPE_CHECKING:
    from unbroken.flow.dataflow import SegmentFunction


class Custom(Operator):
    """A function from streaming DataFrames to one, as in a flow that is written in Python.

    ``function`` is a name in the file ``from``, or, without ``from``, ``module:name`` of a module that the nodes can
    import: one that is installed, or lies beside the network.
    """

    most_inputs: ClassVar[int | None] = None

    file: str | None = Field(default=None, alias="from", description="a Python file, relative to the network's own")
    called: str = Field(alias="function", description="its name in the file, or module:name without 'from'")
    options: dict[str, Any] = Field(default={}, alias="with", description="further arguments, by their names")

    @model_validator(mode="after")
    def _one_place(self) -> Custom:
        module, colon, name = self.called.rpartition(":")
        if self.file is not None and colon:
            raise WrongValue("'function' names a module, but 'from' a file", "keep one of them")
        if self.file is None and not module:
            raise WrongValue(f"nothing says where {self.called!r} is", "add 'from', or write function: module:name")
        if not name.isidentifier():
            raise WrongValue(f"{name!r} cannot be the name of a function", "write a Python name")
        return self

    def function(self, place: OperatorPlace) -> SegmentFunction:
        module = self._module(place)
        name = self.called.rpartition(":")[2]
        found = getattr(module, name, None)
        if not callable(found):
            there = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
            raise UnbrokenError(
                f"there is no function {name!r} in {self._said()}", f"it has {', '.join(there) or 'none'}"
            )
        return partial(found, **self.options) if self.options else found

    def _said(self) -> str:
        return self.file or self.called.rpartition(":")[0]

    def _module(self, place: OperatorPlace) -> ModuleType:
        folder = str(place.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            if self.file is not None:
                path = (place.folder / self.file).resolve()
                if path not in place.modules:
                    place.modules[path] = load_module(path, place.generation)
                return place.modules[path]
            return importlib.import_module(self.called.rpartition(":")[0])
        except UnbrokenError:
            raise
        except (Exception, SystemExit) as error:
            raise UnbrokenError(
                f"{self._said()} failed while it was loaded: {type(error).__name__}: {error}",
                "run it with python to see where",
            ) from error


def load_module(path: Path, generation: int) -> ModuleType:
    """Run a Python file, given by its whole path, as a module; generations of a network have modules of their own."""
    if not path.is_file():
        raise UnbrokenError(f"there is no file {path}", "give a path that begins where the network's file is")
    readable = re.sub(r"\W", "_", path.stem)
    name = f"unbroken_custom_{readable}_{zlib.crc32(str(path).encode()):08x}_{generation}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UnbrokenError(f"{path} is not a Python file", "give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Spark's Python processes cannot import it by this name: functions have to travel with all that they use of it.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module
