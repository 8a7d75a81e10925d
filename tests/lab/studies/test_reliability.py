"""Mean time to loss: formulas against cases solved by hand and by enumeration, and the simulation against both."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.cli import cli
from unbroken.errors import UnbrokenError
from unbroken_lab.studies.reliability.losses import RingWalk, run_lifetimes, simulate
from unbroken_lab.studies.reliability.reliability import (
    Machines,
    MarkovChain,
    Pairing,
    chance_in_a_year,
    deadly_pairs,
    exact_hours,
    formula_hours,
    paper_hours,
    spoken,
    too_short_by,
)
from unbroken_lab.studies.reliability.report import rows_of

RUNS = 20_000

untimed = settings(deadline=None)
"""Examples are quick, and a busy machine makes some of them slow."""

SOMETIMES = Machines(nodes=2, mttf_h=100.0, mttr_h=10.0)
"""Repairs that take a tenth of the time between failures: far from where the formula holds."""


def deadly(pairs: Pairing, nodes: int) -> set[frozenset[int]]:
    """The pairs of nodes that must not be down together, from what the kinds of pairs mean."""
    half = nodes // 2
    if pairs is Pairing.PROCESS:
        return {frozenset({0, 1})}
    if pairs is Pairing.CLUSTER:
        return {frozenset({a, b}) for a in range(half) for b in range(half, 2 * half)}
    if pairs is Pairing.PARTITION:
        return {frozenset({2 * i, 2 * i + 1}) for i in range(half)}
    return {frozenset({i, (i + 1) % nodes}) for i in range(nodes)}


def enumerated_hours(pairs: Pairing, machines: Machines) -> float:
    """The exact answer, from equations between all sets of nodes that can be down without a loss."""
    bad = deadly(pairs, machines.nodes)
    used = sorted(set().union(*bad))
    fails, repairs = 1 / machines.mttf_h, 1 / machines.repair_h(pairs)
    states = [
        frozenset(down)
        for size in range(len(used) + 1)
        for down in combinations(used, size)
        if not any(pair <= set(down) for pair in bad)
    ]
    place = {state: index for index, state in enumerate(states)}
    matrix = np.zeros((len(states), len(states)))
    for state, row in place.items():
        for node in used:
            after = state - {node} if node in state else state | {node}
            rate = repairs if node in state else fails
            matrix[row, row] += rate
            if after in place:
                matrix[row, place[after]] -= rate
    return float(np.linalg.solve(matrix, np.ones(len(states)))[place[frozenset()]])


# --- formulas and exact solutions ---------------------------------------------------------------------


@pytest.mark.parametrize("pairs", list(Pairing))
def test_two_nodes_are_the_same_by_hand_whatever_they_are_called(pairs: Pairing) -> None:
    fails, repairs = 1 / 100, 1 / 10
    by_hand = (3 * fails + repairs) / (2 * fails**2)
    assert by_hand == pytest.approx(650)
    assert exact_hours(pairs, SOMETIMES) == pytest.approx(by_hand)
    assert formula_hours(pairs, SOMETIMES) == pytest.approx(500)
    assert enumerated_hours(pairs, SOMETIMES) == pytest.approx(by_hand)


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("pairs", [Pairing.PROCESS, Pairing.CLUSTER, Pairing.PARTITION])
def test_the_exact_solution_is_that_of_all_sets_of_nodes(pairs: Pairing, nodes: int) -> None:
    machines = replace(SOMETIMES, nodes=nodes, cluster_mttr_h=25.0)
    assert exact_hours(pairs, machines) == pytest.approx(enumerated_hours(pairs, machines))


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("pairs", list(Pairing))
def test_deadly_pairs_are_counted(pairs: Pairing, nodes: int) -> None:
    assert deadly_pairs(pairs, nodes) == len(deadly(pairs, nodes))


def test_the_paper_says_twice_as_much_as_two_nodes_that_both_may_fail_first_give() -> None:
    machines = Machines(nodes=1_000, mttf_h=8766.0, mttr_h=0.1)
    for pairs in (Pairing.PROCESS, Pairing.CLUSTER, Pairing.PARTITION):
        assert paper_hours(pairs, machines) == pytest.approx(2 * formula_hours(pairs, machines))
    assert paper_hours(Pairing.CLUSTER, machines) == pytest.approx(4 * 8766**2 / (1_000**2 * 0.1))
    assert paper_hours(Pairing.PARTITION, machines) == pytest.approx(2 * 8766**2 / (1_000 * 0.1))
    assert paper_hours(Pairing.CHAINED, machines) is None


def test_a_longer_repair_of_whole_copies_is_only_theirs() -> None:
    machines = Machines(nodes=10, mttf_h=1_000.0, mttr_h=1.0, cluster_mttr_h=5.0)
    same = replace(machines, cluster_mttr_h=None)
    assert formula_hours(Pairing.CLUSTER, machines) == pytest.approx(formula_hours(Pairing.CLUSTER, same) / 5)
    assert formula_hours(Pairing.PARTITION, machines) == formula_hours(Pairing.PARTITION, same)


rates = st.floats(0.1, 10)


@untimed
@given(st.lists(st.tuples(rates, rates, rates), min_size=1, max_size=5), rates)
def test_any_chain_is_solved_like_its_equations(steps: list[tuple[float, float, float]], first: float) -> None:
    more = np.array([first, *(step[0] for step in steps[:-1]), 0.0])
    fewer = np.array([0.0, *(step[1] for step in steps)])
    end = np.array([0.0, *(step[2] for step in steps)])
    matrix = np.diag(more + fewer + end) - np.diag(more[:-1], 1) - np.diag(fewer[1:], -1)
    solved = np.linalg.solve(matrix, np.ones(len(more)))[0]
    assert MarkovChain(more, fewer, end).mean_hours() == pytest.approx(solved, rel=1e-4)


hours = st.floats(0.01, 1e5)
several = st.integers(2, 400)
with_exact = st.sampled_from([Pairing.PROCESS, Pairing.CLUSTER, Pairing.PARTITION])


def known(pairs: Pairing, machines: Machines) -> float:
    found = exact_hours(pairs, machines)
    assert found is not None
    return found


@untimed
@given(with_exact, several, hours, hours, st.floats(1.001, 100))
def test_better_nodes_and_faster_repairs_help_and_more_nodes_do_not(
    pairs: Pairing, nodes: int, mttf_h: float, mttr_h: float, factor: float
) -> None:
    machines = Machines(nodes, mttf_h, mttr_h)
    usual = known(pairs, machines)
    assert known(pairs, replace(machines, mttf_h=mttf_h * factor)) > usual
    assert known(pairs, replace(machines, mttr_h=mttr_h / factor)) >= usual * (1 - 1e-12)
    assert known(pairs, replace(machines, nodes=nodes * 2)) <= usual * (1 + 1e-12)


@untimed
@given(several, hours, hours)
def test_pairs_of_partitions_are_never_worse_than_whole_copies(nodes: int, mttf_h: float, mttr_h: float) -> None:
    machines = Machines(nodes, mttf_h, mttr_h)
    assert known(Pairing.PARTITION, machines) >= known(Pairing.CLUSTER, machines) * (1 - 1e-12)
    assert known(Pairing.PROCESS, machines) >= known(Pairing.PARTITION, machines) * (1 - 1e-12)


@untimed
@given(with_exact, several, hours, hours)
def test_the_formula_is_never_too_long_and_too_short_by_no_more_than_it_says(
    pairs: Pairing, nodes: int, mttf_h: float, mttr_h: float
) -> None:
    machines = Machines(nodes, mttf_h, mttr_h)
    formula, right = formula_hours(pairs, machines), known(pairs, machines)
    assert formula <= right * (1 + 1e-12)
    assert right <= formula * (1 + too_short_by(pairs, machines) + 1e-12)


@pytest.mark.parametrize("share", [1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 9])
def test_so_is_the_formula_of_a_ring(nodes: int, share: float) -> None:
    machines = Machines(nodes, 1.0, share)
    formula, right = formula_hours(Pairing.CHAINED, machines), enumerated_hours(Pairing.CHAINED, machines)
    assert formula <= right * (1 + 1e-12)
    assert right <= formula * (1 + too_short_by(Pairing.CHAINED, machines) + 1e-9)


# --- simulation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("pairs", list(Pairing))
def test_the_simulation_is_right_where_everything_can_be_enumerated(pairs: Pairing, nodes: int) -> None:
    machines = replace(SOMETIMES, nodes=nodes)
    found = simulate(pairs, machines, RUNS)
    assert found.method == "cycles"
    assert_within(found.hours, found.half_width, enumerated_hours(pairs, machines))


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
@pytest.mark.parametrize("pairs", list(Pairing))
def test_lifetimes_are_simulated_where_hardly_ever_all_nodes_are_up(pairs: Pairing, nodes: int) -> None:
    machines = Machines(nodes, mttf_h=1.0, mttr_h=3.0)
    found = simulate(pairs, machines, RUNS)
    assert found.method == "lifetimes"
    assert_within(found.hours, found.half_width, enumerated_hours(pairs, machines))


def test_cycles_and_lifetimes_of_a_ring_agree() -> None:
    machines = Machines(nodes=40, mttf_h=40.0, mttr_h=2.0)
    by_cycles = simulate(Pairing.CHAINED, machines, RUNS)
    lives = run_lifetimes(RingWalk(machines, 1_000), RUNS, np.random.default_rng(5))
    assert by_cycles.method == "cycles"
    assert float(lives.mean()) == pytest.approx(by_cycles.hours, rel=0.05)


def assert_within(found: float, half_width: float, right: float) -> None:
    """Within 4.5 standard errors, which a seed in a hundred thousand is not; and close enough to tell models apart."""
    assert half_width < 0.03
    assert abs(found / right - 1) < 4.5 / 1.96 * half_width


@pytest.mark.parametrize("nodes", [10, 100, 1_000, 10_000])
@pytest.mark.parametrize("pairs", list(Pairing))
def test_formula_and_simulation_agree_up_to_ten_thousand_nodes(pairs: Pairing, nodes: int) -> None:
    """Repairs of 5 s, and nodes that last half a year: short also against the failures of half of 10,000 nodes."""
    machines = Machines(nodes, mttf_h=4383.0, mttr_h=5 / 3600)
    found = simulate(pairs, machines, RUNS)
    assert found.hours == pytest.approx(formula_hours(pairs, machines), rel=0.05)


def test_a_ring_of_many_nodes_of_which_some_are_always_down() -> None:
    machines = Machines(nodes=1_000, mttf_h=500.0, mttr_h=5.0)
    chained = simulate(Pairing.CHAINED, machines, 2_000)
    fixed = known(Pairing.PARTITION, machines)
    assert chained.method == "lifetimes"
    assert 0.45 < chained.hours / fixed < 0.65, (
        "about half as long as with pairs that have nothing to do with each other"
    )


@untimed
@given(st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_a_ring_knows_at_any_time_who_is_endangered(nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    walk = RingWalk(Machines(nodes, mttf_h=1.0, mttr_h=1.0), 6)
    for _ in range(40):
        walk.step(rng)
        if rng.random() < 0.05 and walk.size > 1:
            walk.keep(np.arange(walk.size) > 0)
        if rng.random() < 0.05:
            walk.restart(np.array([walk.size - 1]))
        for row in range(walk.size):
            down = {int(node) for node in walk.places[row, : walk.down[row]]}
            assert down == {int(node) for node in np.flatnonzero(walk.is_down[walk.row[row]])}
            near = {(node + step) % nodes for node in down for step in (-1, 1)}
            assert not near & down, "two neighbours are down"
            assert walk.endangered[row] == len(near)


def test_seeds_reproduce() -> None:
    machines = Machines(nodes=50, mttf_h=100.0, mttr_h=1.0)
    once = simulate(Pairing.CHAINED, machines, 500, seed=7)
    assert simulate(Pairing.CHAINED, machines, 500, seed=7) == once
    assert simulate(Pairing.CHAINED, machines, 500, seed=8) != once
    alone = rows_of(machines, [50], [Pairing.CHAINED], 500, 7)
    assert rows_of(machines, [10, 50], list(Pairing), 500, 7)[-1] == alone[0]


@pytest.mark.parametrize(
    "wrong", [{"nodes": 1}, {"nodes": 10_001}, {"mttf_h": 0.0}, {"mttr_h": float("nan")}, {"cluster_mttr_h": -1.0}]
)
def test_machines_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnbrokenError):
        replace(SOMETIMES, **wrong)


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(UnbrokenError, match="at least 100"):
        simulate(Pairing.PROCESS, SOMETIMES, 99)


def test_times_are_said_in_fitting_units() -> None:
    said = [spoken(value) for value in (8766 * 1234.5, 8766 * 3e8, 8766.0, 30.0, 0.5, 10 / 3600)]
    assert said == ["1,230 years", "3.00e+08 years", "365 days", "30 h", "30 min", "10 s"]
    assert chance_in_a_year(8766 * 100.0) == pytest.approx(0.00995, rel=1e-3)


# --- command ------------------------------------------------------------------------------------------


def mttf(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", "mttf", "--runs", "1000", *arguments])


def test_the_command_prints_a_table() -> None:
    result = mttf("--nodes", "10,100", "--mttf", "720", "--mttr", "1")
    assert result.exit_code == 0, result.output
    lines = [[cell.strip() for cell in line.split("│")] for line in result.output.splitlines() if line[:1] == "│"]
    assert [line[1:3] for line in lines] == [
        ["process", "2"], ["cluster", "10"], ["cluster", "100"], ["partition", "10"], ["partition", "100"],
        ["chained", "10"], ["chained", "100"],
    ]  # fmt: skip
    assert lines[3][4:7] == ["710 years", "355 years", "355 years"]


def test_the_command_prints_json_and_writes_files(tmp_path: Path) -> None:
    table, picture = tmp_path / "made" / "mttf.csv", tmp_path / "made" / "mttf.png"
    result = mttf("--nodes", "9", "--pairs", "partition", "--json", "--csv", str(table), "--png", str(picture))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert [(row["pairs"], row["deadly_pairs"]) for row in answer["rows"]] == [("partition", 4), ("chained", 9)]
    assert all(row["formula_holds"] for row in answer["rows"])
    with table.open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["simulated_hours"]) for row in written] == [r["simulated"]["hours"] for r in answer["rows"]]
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "1"], "from 2 to 10000"),
        (["--nodes", "ten"], "not a number of nodes"),
        (["--mttf", "0"], "--mttf"),
        (["--mttr", "-1"], "--mttr"),
        (["--pairs", "triples"], "--pairs"),
        (["--runs", "10"], "--runs"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], said: str) -> None:
    result = mttf(*arguments)
    assert result.exit_code == 2
    assert said in result.output
