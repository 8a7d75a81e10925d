"""The way of somebody who tries Unbroken for the first time, measured: from ``pip install`` to their flow's results.

Builds a wheel of this tree, installs it with plain pip into an environment of its own, writes the smallest flow of the
documentation to a file, runs it, and waits for the first result on the screen. Prints one line of JSON with the seconds
of each stage. What pip downloads is in its cache already, as for anybody who has used Spark: unless ``--no-warm`` says
otherwise, everything is installed once before, elsewhere, without being timed.

    python scripts/new_user.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD_DEADLINE_S = 300
INSTALL_DEADLINE_S = 1_200
RESULT_DEADLINE_S = 300
END_DEADLINE_S = 60
AIM_S = 60.0
"""What the whole way may take on a warm package cache."""

READY, RESULT = "ready", "rows"
"""Events of ``unbroken run --json``."""


@dataclass(frozen=True)
class Times:
    """Seconds of each stage; ``ready_s`` is the part of ``first_result_s`` until all nodes were ready."""

    venv_s: float
    install_s: float
    ready_s: float
    first_result_s: float

    @property
    def total_s(self) -> float:
        return self.venv_s + self.install_s + self.first_result_s


def flow_of(page: Path) -> str:
    """The first flow on a page of the documentation: what a reader would copy."""
    found = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if found is None:
        raise SystemExit(f"{page} has no Python")
    return found[1]


def build_wheel(into: Path) -> Path:
    """A wheel of this tree, made by the tools of the environment that runs this."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(into)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=BUILD_DEADLINE_S, stdout=sys.stderr)
    return next(into.glob("unbroken-*.whl"))


def install(python: str, wheel: Path, environment: Path) -> tuple[float, float]:
    """Seconds that it takes to make an environment, and to install the wheel and all that it needs."""
    began = time.monotonic()
    subprocess.run([python, "-m", "venv", str(environment)], check=True, timeout=INSTALL_DEADLINE_S)
    made = time.monotonic()
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, check=True, timeout=INSTALL_DEADLINE_S, stdout=sys.stderr)
    return made - began, time.monotonic() - made


@contextlib.contextmanager
def running(command: list[str], directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the block, whatever happens; ``unbroken run`` ends all that it has started."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**clean, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_DEADLINE_S)


def event_of(line: str) -> str | None:
    """What a line of output is about; warnings of Spark and Java are among them."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found.get("event") if isinstance(found, dict) else None


def first_result(environment: Path, directory: Path, flow: str) -> tuple[float, float]:
    """Seconds from the command to the line that says that all nodes are ready, and to the first result."""
    (directory / "first.py").write_text(flow)
    began, ready, seen = time.monotonic(), 0.0, []
    with running([str(environment / "bin" / "unbroken"), "run", "first.py", "--json"], directory) as process:
        assert process.stdout is not None
        late = threading.Timer(RESULT_DEADLINE_S, process.kill)
        late.start()
        try:
            for line in process.stdout:
                seen.append(line)
                event = event_of(line)
                if event == READY:
                    ready = time.monotonic() - began
                if event == RESULT:
                    return ready, time.monotonic() - began
        finally:
            late.cancel()
    raise SystemExit(f"no result within {RESULT_DEADLINE_S} s:\n{''.join(seen)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that makes the environment")
    parser.add_argument("--wheel", type=Path, help="a wheel of Unbroken, instead of one of this tree")
    parser.add_argument("--environment", type=Path, help="an environment that has it already; nothing is installed")
    parser.add_argument("--no-warm", action="store_true", help="do not fill pip's cache first")
    parser.add_argument("--strict", action="store_true", help=f"fail if it takes longer than {AIM_S:g} s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unbroken-new-user-") as place:
        directory, environment = Path(place), options.environment or Path(place) / "venv"
        venv_s = install_s = 0.0
        if options.environment is None:
            wheel = options.wheel or build_wheel(directory)
            if not options.no_warm:
                install(options.python, wheel, directory / "warm")
            venv_s, install_s = install(options.python, wheel, environment)
        times = Times(venv_s, install_s, *first_result(environment, directory, flow_of(ROOT / "docs" / "start.md")))
    values = {**asdict(times), "total_s": times.total_s}
    print(json.dumps({name: round(value, 1) for name, value in values.items()} | {"cores": os.cpu_count()}))
    if options.strict and times.total_s > AIM_S:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
