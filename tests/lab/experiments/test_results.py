"""The page of results: made from the files of experiments, with what was not run listed as such."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.cli.shared import EXIT_FAILED
from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import ReportClaim, Rows, Size
from unbroken_lab.experiments.paper.recovery_table import RecoveryTable
from unbroken_lab.experiments.records import keep, write_csv
from unbroken_lab.experiments.registry import names
from unbroken_lab.experiments.results import figures_markdown, page_of, read_found, write_page

ROWS: Rows = [
    {"failure": "kill -9", "strategy": "active", "gap_s": 0.81, "gap_before_s": 0.8, "resumed_s": 0.3,
     "recovered_s": 0.3, "lost": 0, "duplicated": 0, "overhead": 1.0},
    {"failure": "kill -9", "strategy": "upstream", "gap_s": 4.25, "gap_before_s": 0.8, "resumed_s": 4.0,
     "recovered_s": None, "lost": 0, "duplicated": 0, "overhead": 0.002},
    {"failure": "freeze", "strategy": "none", "error": "waited 120 s\nfor the last result"},
]  # fmt: skip


def kept_in(directory: Path, quick: bool = False) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_csv(directory / "recovery-table.csv", ROWS)
    keep(RecoveryTable(), ROWS, directory, Size(quick), 754.0)
    return directory


def test_the_page_shows_what_was_measured_and_lists_what_was_not(tmp_path: Path) -> None:
    results, page = kept_in(tmp_path / "docs" / "results"), tmp_path / "docs" / "results.md"
    assert write_page(results, page) == ["recovery-table"]
    text = page.read_text()
    assert "![Failures and what becomes of the results, by strategy](results/recovery-table.png)" in text
    assert (page.parent / "results" / "recovery-table.png").read_bytes().startswith(b"\x89PNG")
    assert RecoveryTable().scale(Size()) in text
    assert "12.6 min" in text
    assert "| rows in 2 runs |  | 0 lost, 0 duplicated |  |" in text
    assert "- waited 120 s for the last result" in text
    missing = text.split("## Not yet run")[1]
    assert all(f"- `{name}`" in missing for name in names() if name != "recovery-table")
    assert "recovery-table" not in missing


def test_the_table_of_failures_has_a_line_for_every_run_also_for_one_that_failed() -> None:
    lines = figures_markdown(RecoveryTable(), ROWS).splitlines()
    assert lines[2] == "| kill -9 | active | 0.81 s | 0.80 s | 0.30 s | 0.30 s | 0 | 0 |"
    assert lines[3] == "| kill -9 | upstream | 4.25 s | 0.80 s | 4.00 s | - | 0 | 0 |"
    assert lines[4] == "| freeze | none |  |  |  |  |  | failed |"
    table, after = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert len({line.count("|") for line in table}) == 1
    assert len(after) == 1 and '"-" if they did not' in after[0]


def test_the_table_on_the_page_is_that_of_the_file(tmp_path: Path) -> None:
    kept_in(tmp_path)
    found = read_found(tmp_path, "recovery-table", "results")
    assert found.table == figures_markdown(RecoveryTable(), ROWS)
    assert figures_markdown(RecoveryTable(), ROWS) in page_of({"recovery-table": found}, names())


def test_links_of_the_contents_lead_to_headings(tmp_path: Path) -> None:
    kept_in(tmp_path)
    text = page_of({"recovery-table": read_found(tmp_path, "recovery-table", ".")}, names())
    (anchor,) = re.findall(r"\]\(#([^)]+)\)", text)
    (heading,) = (line[3:] for line in text.splitlines() if line.startswith("## Failures"))
    assert anchor == re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    assert "(recovery-table.png)" in text


def test_a_report_is_a_table(tmp_path: Path) -> None:
    kept_in(tmp_path)
    found = read_found(tmp_path, "recovery-table", ".")
    claims = [
        ReportClaim("it runs", "", "it ran"),
        ReportClaim("time", "1 s", "9 s", False),
        ReportClaim("rows lost", "0", "0", True),
    ]
    told = type(found.kept)(**{**found.kept.to_json(), "claims": [asdict(claim) for claim in claims], "quick": True})
    text = page_of({"recovery-table": type(found)(told, "", ".", False)}, names())
    head = "| claim | paper | here | agrees |\n|---|---|---|---|\n"
    assert f"{head}| it runs |  | it ran |  |\n| time | 1 s | 9 s | no |\n| rows lost | 0 | 0 | yes |" in text
    assert "quick run" in text and "![" not in text


def test_files_from_elsewhere_are_copied_beside_the_page(tmp_path: Path) -> None:
    results, page = kept_in(tmp_path / "measured"), tmp_path / "docs" / "results.md"
    done = CliRunner().invoke(cli, ["bench", "results", "--from", str(results), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert "not yet run" in done.output
    copied = sorted(path.name for path in (tmp_path / "docs" / "results").iterdir())
    assert copied == ["recovery-table.csv", "recovery-table.json", "recovery-table.png"]
    assert "(results/recovery-table.png)" in page.read_text()


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnbrokenError, match="holds no experiment"):
        write_page(tmp_path, tmp_path / "results.md")
    kept_in(tmp_path)
    (tmp_path / "recovery-table.json").write_text("{}")
    with pytest.raises(UnbrokenError, match="does not describe"):
        write_page(tmp_path, tmp_path / "results.md")


def test_what_is_drawn_again_stays_as_old_and_as_quick_as_it_was(tmp_path: Path) -> None:
    kept_in(tmp_path, quick=True)
    before = json.loads((tmp_path / "recovery-table.json").read_text())
    old = {**before, "measured": "2020-02-02", "machine": "64 cores", "claims": []}
    (tmp_path / "recovery-table.json").write_text(json.dumps(old))
    done = CliRunner().invoke(cli, ["bench", "recovery-table", "--redraw", "--out", str(tmp_path)])
    assert done.exit_code == EXIT_FAILED, "a case of the run failed"
    again = json.loads((tmp_path / "recovery-table.json").read_text())
    assert again == {**old, "claims": before["claims"]}


def test_a_run_that_failed_does_not_leave_the_picture_of_another(tmp_path: Path) -> None:
    kept_in(tmp_path)
    assert (tmp_path / "recovery-table.png").exists()
    keep(RecoveryTable(), ROWS[2:], tmp_path, Size(), 1.0)
    assert not (tmp_path / "recovery-table.png").exists()
    assert "![" not in page_of({"recovery-table": read_found(tmp_path, "recovery-table", ".")}, names())
