"""What the tests of experiments share: a quick run with its files, and drawing from fixed rows."""

from __future__ import annotations

import json
from pathlib import Path

from unbroken_lab.experiments.experiment import ERROR, Experiment, ReportClaim, Row, Rows, Size
from unbroken_lab.experiments.records import draw, read_csv, run_and_keep, write_csv
from unbroken_lab.experiments.registry import experiment_of

PNG = b"\x89PNG"


def try_out(name: str, directory: Path) -> list[Row]:
    """Run an experiment quickly: its three files are there, and no case failed; the rows as they were kept."""
    said: list[str] = []
    kept = run_and_keep(experiment_of(name), directory, Size(quick=True), said.append)
    assert not kept.failed, said
    assert kept.claims and kept.quick
    told = json.loads((directory / f"{name}.json").read_text())
    assert told["name"] == name and told["scale"]
    assert (directory / f"{name}.png").read_bytes().startswith(PNG)
    rows = read_csv(directory / f"{name}.csv")
    assert rows and not any(row.get(ERROR) for row in rows)
    return rows


def drawn(experiment: Experiment, rows: Rows, directory: Path) -> dict[str, ReportClaim]:
    """Draw rows, and again as they are when they come from a file; the claims, by what they are about."""
    table, picture = directory / "rows.csv", directory / "picture.png"
    write_csv(table, rows)
    again = read_csv(table)
    for these in (rows, again):
        picture.unlink(missing_ok=True)
        draw(experiment, these, picture, Size())
        assert picture.read_bytes().startswith(PNG)
    found = list(experiment.claims(rows))
    assert found == list(experiment.claims(again))
    by_name = {claim.claim: claim for claim in found}
    assert len(by_name) == len(found), "two lines of a report say that they are about the same"
    return by_name


def disagreeing(found: dict[str, ReportClaim]) -> list[str]:
    """The claims in which paper and measurement differ."""
    return [name for name, claim in found.items() if claim.agrees is False]
