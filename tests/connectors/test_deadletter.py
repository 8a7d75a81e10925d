"""Bad rows are kept once, however many ingress nodes keep them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from unbroken.connectors.base import BadRow
from unbroken.connectors.deadletter import DeadLetters
from unbroken.errors import UnbrokenError

BAD = [BadRow("{x\n\udcff", "not JSON", "a.json:3"), BadRow("7", "no object", "a.json:9")]


def test_bad_rows_are_kept_once_per_pulse(tmp_path: Path) -> None:
    mine, other = DeadLetters(tmp_path / "dead"), DeadLetters(tmp_path / "dead")
    assert mine.write("clicks", 5, BAD)
    assert not other.write("clicks", 5, BAD)
    assert other.write("clicks", 6, BAD[:1])
    assert not mine.write("clicks", 7, [])
    assert sorted(os.listdir(tmp_path / "dead")) == ["clicks-0000000005.jsonl", "clicks-0000000006.jsonl"]
    lines = (tmp_path / "dead" / "clicks-0000000005.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {
        "source": "clicks",
        "pulse": 5,
        "origin": "a.json:9",
        "reason": "no object",
        "raw": "7",
    }


def test_bad_rows_are_counted_by_source(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path)
    assert letters.count("a") == 0
    letters.write("a", 1, BAD)
    letters.write("a-b", 1, BAD[:1])
    assert (letters.count("a"), letters.count("a-b")) == (2, 1)
    letters.write("a", 2, BAD)
    assert letters.count("a") == 4
    assert DeadLetters(tmp_path).count("a") == 4


def test_a_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnbrokenError, match="cannot be made"):
        DeadLetters(tmp_path / "file" / "x")
