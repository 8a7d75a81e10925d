"""Whether what traces need is installed; looked up without importing any of it."""

from __future__ import annotations

from importlib.util import find_spec

from unbroken.errors import Problem
from unbroken.flow.settings import Settings

INSTALL = "pip install 'unbroken[otel]'"
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def missing() -> list[str]:
    """The modules that are not there."""
    return [name for name in NEEDED if not _there(name)]


def tracing_problems(where: str, settings: Settings) -> list[Problem]:
    """Why a flow that asks for traces cannot have them here."""
    if settings.traces is None or not missing():
        return []
    what = "traces need OpenTelemetry, which is not installed"
    return [Problem(f"{where}, setting traces", what, f"{INSTALL} on every node, or leave the setting out")]


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # A package that it is in is not there either.
        return False
