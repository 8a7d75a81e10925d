"""No page of the documentation has a place that was left for a figure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.places import ROOT

PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
LEFT = re.compile(r"MEASURE_|TODO|FIXME|\bTBD\b|\bXXX\b")
MARK = re.compile(r"<!-- ([a-z ]+) -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    text = page.read_text()
    assert not LEFT.search(text), LEFT.search(text)
    marks = [found[1] for found in MARK.finditer(text)]
    for mark in marks:
        if not mark.startswith("end of ") and f"end of {mark}" in marks:
            made = text.split(f"<!-- {mark} -->")[1].split(f"<!-- end of {mark} -->")[0]
            assert made.strip(), f"nothing stands between the marks of {mark}"
