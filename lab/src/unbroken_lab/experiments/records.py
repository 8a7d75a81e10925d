"""What is kept of an experiment: a CSV file with every row, a picture, and a JSON file that says what they are."""

from __future__ import annotations

import contextlib
import csv
import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import (
    ERROR,
    Experiment,
    Row,
    Rows,
    Say,
    Size,
    Value,
    good,
    machine,
    run_cases,
)

WIDTH, HEIGHT, DPI = 8.0, 4.6, 120
LETTERS = 150
"""As many fit below a figure in one line."""


@dataclass(frozen=True)
class Kept:
    """An experiment that has been run, as it lies on disk."""

    name: str
    title: str
    source: str
    scale: str
    machine: str
    measured: str
    took_s: float
    quick: bool
    parameters: Mapping[str, Value]
    claims: Sequence[dict[str, Any]]
    paper: Sequence[dict[str, Any]]
    failed: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_and_keep(experiment: Experiment, directory: Path, size: Size, say: Say, *, resume: bool = False) -> Kept:
    """Run an experiment and leave ``NAME.csv``, ``NAME.png`` and ``NAME.json`` in a directory.

    With ``resume`` cases that an earlier run has left there are not measured again: one that was ended goes on, and
    cases that failed are tried again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    table, began = directory / f"{experiment.name}.csv", time.monotonic()
    before, spent_s = _left_before(experiment, directory, size) if resume else ([], 0.0)
    rows = run_cases(experiment, size, say, lambda rows: write_csv(table, rows), before)
    return keep(experiment, rows, directory, size, spent_s + time.monotonic() - began)


def _left_before(experiment: Experiment, directory: Path, size: Size) -> tuple[list[Row], float]:
    """The rows that an earlier run has left, and the seconds it took, which one that was ended did not note."""
    if not (directory / f"{experiment.name}.csv").exists():
        return [], 0.0
    took_s = 0.0
    if (directory / f"{experiment.name}.json").exists():
        kept = read_kept(directory, experiment.name)
        if kept.quick != size.quick:
            was = "a quick run" if kept.quick else "no quick run"
            raise UnbrokenError(
                f"what {directory} has of {experiment.name} is from {was}, which cannot be gone on with; "
                "use another directory or leave out --resume"
            )
        if kept.parameters != experiment.settings():
            raise UnbrokenError(
                f"what {directory} has of {experiment.name} was measured with {_written_out(kept.parameters)}; "
                "give the same, use another directory or leave out --resume"
            )
        took_s = kept.took_s
    return read_csv(directory / f"{experiment.name}.csv"), took_s


def redraw(experiment: Experiment, directory: Path) -> Kept:
    """Draw and describe again what was measured before; when, on what and with what parameters stays as it was."""
    rows, before = read_csv(directory / f"{experiment.name}.csv"), read_kept(directory, experiment.name)
    return keep(type(experiment)(**before.parameters), rows, directory, Size(before.quick), before.took_s, before)


def read_kept(directory: Path, name: str) -> Kept:
    path = directory / f"{name}.json"
    try:
        told = json.loads(path.read_text())
        return Kept(**{field.name: told[field.name] for field in fields(Kept)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        again = f"run `unbroken bench {name}`"
        raise UnbrokenError(f"{path} does not describe an experiment ({error!r}); {again}") from None


def keep(
    experiment: Experiment, rows: Rows, directory: Path, size: Size, took_s: float, before: Kept | None = None
) -> Kept:
    """Draw and describe rows that are in their file already; ``before`` tells when they were measured."""
    found, picture = good(rows), directory / f"{experiment.name}.png"
    if found:
        draw(experiment, found, picture, size)
    else:
        # One of an earlier run would be taken for this one's.
        picture.unlink(missing_ok=True)
    kept = Kept(
        experiment.name,
        experiment.title,
        experiment.source,
        experiment.scale(size),
        machine() if before is None else before.machine,
        time.strftime("%Y-%m-%d", time.gmtime()) if before is None else before.measured,
        round(took_s, 1),
        size.quick,
        experiment.settings(),
        [asdict(claim) for claim in experiment.claims(found)] if found else [],
        [asdict(value) for value in experiment.paper],
        sorted({str(row[ERROR]) for row in rows if row.get(ERROR)}),
    )
    path = directory / f"{experiment.name}.json"
    path.write_text(json.dumps(kept.to_json(), indent=2) + "\n")
    return kept


def draw(experiment: Experiment, rows: Rows, path: Path, size: Size) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    try:
        experiment.draw(rows, figure)
        figure.suptitle(experiment.title)
        below = textwrap.fill(f"{experiment.source}. {experiment.scale(size)}", LETTERS)
        figure.supxlabel(below, fontsize=7, color="0.35")
        figure.savefig(path, dpi=DPI, format="png")
    finally:
        plt.close(figure)


def write_csv(path: Path, rows: Rows) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _written(value) for key, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[Row]:
    """Rows as they were kept: text, for ``experiment.number`` to read."""
    if not path.exists():
        raise UnbrokenError(f"there is no {path}; make it with `unbroken bench {path.stem}`")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def numeric(rows: Rows) -> list[Row]:
    """Rows of a file with numbers and booleans as such, and without what a case has no figure for."""
    return [{key: _read(str(value)) for key, value in row.items() if value not in ("", None)} for row in rows]


def _read(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _written_out(parameters: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items()) or "no parameters"


def _written(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
