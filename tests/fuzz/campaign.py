"""Runs many inputs through a target in processes of their own, so that a crash or a hang is a finding, not an end.

An input is known by ``<target>:<seed>:<number>``, which is all that is needed to make it again::

    python -m fuzz.campaign --seconds 60
    python -m fuzz.campaign --replay csv:7:1234
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.mutation import made
from fuzz.targets import TARGETS, Target

LONGEST_INPUT_S = 2.0
"""Longest processor time of one input of at most 64 KB; most take microseconds."""

HANG_S = 60.0
MEMORY_BYTES = 6 * 2**30
"""Address space of a worker: what asks for more than this for an input of 64 KB fails with MemoryError."""

BATCH = 2_000
"""Inputs between two looks at the clock by the parent; a worker begins a new process after some of them."""

_PROGRESS = struct.Struct("<qd")


@dataclass(frozen=True)
class Finding:
    """An input that a target did not stand, and what became of it."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def replay(name: str) -> None:
    """Run one input here, whatever happens."""
    target, seed, number = name.split(":")
    data = made(TARGETS[target].seeds, f"{target}:{seed}:{number}")
    print(f"{len(data)} bytes: {data[:500]!r}")
    TARGETS[target].run(data)


def inputs(target: Target, seed: int, numbers: range) -> Iterator[tuple[str, bytes]]:
    for number in numbers:
        name = f"{target.name}:{seed}:{number}"
        yield name, made(target.seeds, name)


def check(target: Target, data: bytes) -> str | None:
    """Run an input; what was wrong, or None. A refusal that the target documents is right."""
    began = time.process_time()
    try:
        target.run(data)
    except target.refusals:
        pass
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
    took = time.process_time() - began
    return f"took {took:.1f} s for {len(data)} bytes" if took > LONGEST_INPUT_S * target.cost else None


def _work(name: str, seed: int, numbers: range, progress: str, found: Any) -> None:
    """A worker: notes which input it is at before it runs it, for the case that it does not come back."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), _PROGRESS.size) as page:
        for number, (label, data) in zip(numbers, inputs(TARGETS[name], seed, numbers), strict=True):
            page[:] = _PROGRESS.pack(number, time.time())
            wrong = check(TARGETS[name], data)
            if wrong is not None:
                found.put((label, wrong))
        page[:] = _PROGRESS.pack(numbers.stop, time.time())


def run_range(name: str, seed: int, numbers: range) -> list[Finding]:
    """Run a range of inputs in a process of its own; one that dies or hangs is replaced behind the input it was at."""
    out: list[Finding] = []
    # Not of this process: it may have threads that hold locks, and memory that counts for the limit of the worker.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fuzz.targets"])
    with tempfile.NamedTemporaryFile() as progress:
        begin = numbers.start
        while begin < numbers.stop:
            progress.seek(0)
            progress.write(_PROGRESS.pack(begin, time.time()))
            progress.flush()
            found = context.Queue()
            worker = context.Process(target=_work, args=(name, seed, range(begin, numbers.stop), progress.name, found))
            worker.start()
            hung = _await_end(worker, Path(progress.name))
            at, _ = _PROGRESS.unpack(Path(progress.name).read_bytes())
            while not found.empty():
                out.append(Finding(*found.get()))
            if at >= numbers.stop and worker.exitcode == 0:
                return out
            what = f"no answer within {HANG_S:g} s" if hung else f"ended with {worker.exitcode}"
            out.append(Finding(f"{name}:{seed}:{at}", what))
            begin = at + 1
    return out


def _await_end(worker: Any, progress: Path) -> bool:
    """Wait for a worker; True if it had to be killed because an input took too long."""
    while worker.is_alive():
        worker.join(0.2)
        _, since = _PROGRESS.unpack(progress.read_bytes())
        if worker.is_alive() and time.time() - since > HANG_S:
            worker.kill()
            worker.join()
            return True
    return False


def growth(target: Target, pattern: bytes) -> str | None:
    """Whether eight times the input takes much more than eight times as long; best of three each."""
    small, large = (_fastest(target, pattern * max(1, size // len(pattern))) for size in (2**14, 2**17))
    if large > 8 * 4 * small + 0.05:
        return f"{pattern[:40]!r} repeated: {small * 1000:.1f} ms for 16 KB, {large * 1000:.1f} ms for 128 KB"
    return None


def _fastest(target: Target, data: bytes) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        check(target, data)
        times.append(time.process_time() - began)
    return min(times)


def campaign(names: Sequence[str], seconds: float, seed: int) -> tuple[dict[str, int], list[Finding]]:
    """Give every target the same time, in turns; how many inputs each had, and what was found."""
    counts = dict.fromkeys(names, 0)
    spent = dict.fromkeys(names, 0.0)
    found: list[Finding] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = min(names, key=lambda each: spent[each])
        began = time.monotonic()
        numbers = range(counts[name], counts[name] + BATCH // TARGETS[name].cost)
        found += run_range(name, seed, numbers)
        counts[name] = numbers.stop
        spent[name] += time.monotonic() - began
    return counts, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="may be repeated; all by default")
    parser.add_argument("--replay", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    if options.replay:
        replay(options.replay)
        return 0
    counts, found = campaign(options.target or sorted(TARGETS), options.seconds, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    for finding in found:
        print(finding, file=sys.stderr)
        target = finding.name.partition(":")[0]
        data = made(TARGETS[target].seeds, finding.name)
        (options.out / f"{finding.name.replace(':', '-')}.bin").write_bytes(data)
    total = sum(counts.values())
    print(json.dumps({"seed": options.seed, "inputs": total, "found": len(found), "targets": counts}))
    print(f"{total - len(found)} passed, {len(found)} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
