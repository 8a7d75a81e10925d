"""A short campaign over all targets, all inputs that were ever found, and how cost grows with size."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.campaign import check, growth, run_range
from fuzz.mutation import made
from fuzz.targets import TARGETS, _header, _sealed_unit, _table
from unbroken.data.checksum import Damaged
from unbroken.data.rows.parsed import Rows
from unbroken.data.unit_store import decode_unit, encode_unit

CORPUS = Path(__file__).parent / "corpus"
INPUTS = 150
PREFIX_BYTES = 64
PATTERNS = [(name, pattern) for name, target in TARGETS.items() for pattern in target.patterns]


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_input_crashes_hangs_or_escapes(name: str) -> None:
    assert run_range(name, 0, range(INPUTS // TARGETS[name].cost)) == []


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_right_inputs_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds:
        read = TARGETS[name].run(seed)
        if isinstance(read, Rows):
            assert read.table.num_rows and not read.rejected


@pytest.mark.parametrize(("name", "pattern"), PATTERNS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(PATTERNS)])
def test_cost_grows_no_faster_than_the_input(name: str, pattern: bytes) -> None:
    assert growth(TARGETS[name], pattern) is None


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_inputs_that_were_found_once(path: Path) -> None:
    assert check(TARGETS[path.parent.name], path.read_bytes()) is None


def test_inputs_are_made_again_by_their_names() -> None:
    seeds = TARGETS["json"].seeds
    assert made(seeds, "json:1:2") == made(seeds, "json:1:2") != made(seeds, "json:1:3")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_sealed_unit_that_is_no_arrow_file_is_damage(keep: int) -> None:
    """Arrow's own errors do not escape; a few inputs suffice, for how Arrow reads is not ours to search."""
    whole = bytes(encode_unit(_header(), _table()))[PREFIX_BYTES:]
    with pytest.raises(Damaged, match="it is no Arrow file"):
        decode_unit(_sealed_unit(whole[:keep]))
