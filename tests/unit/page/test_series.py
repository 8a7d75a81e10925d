"""Samples for the charts: rates, percentiles, gaps and lag, from what nodes say."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kit.page.flows import NOW_MS, SHAPE, dead, ingress, replica, silent, snapshot, states
from unbroken.page import series as module
from unbroken.page.series import SAMPLES, Series, columns, percentile
from unbroken.page.snapshot import FlowSnapshot


def at(moment: int, found: dict[str, dict[str, Any]]) -> FlowSnapshot:
    return dataclasses.replace(snapshot(found), time_ms=NOW_MS + moment)


def produced(count: int, **changes: Any) -> dict[str, dict[str, Any]]:
    """All replicas have come to a unit."""
    found = states()
    for state in found.values():
        state["replicas"] = [one | {"produced": count} | changes for one in state["replicas"]]
    return found


def test_the_first_sample_has_no_rates() -> None:
    sample = Series().look(at(0, states()))
    assert sample is not None
    assert (sample.rows_per_s, sample.latency_p50_ms) == (None, None)
    assert (sample.gap_ms, sample.lag_ms, sample.slowest_lag_ms) == (100.0, 20.0, 20.0)


def test_rows_per_second_are_those_of_the_member_that_has_read_most() -> None:
    series, found = Series(), states()
    series.look(at(0, found))
    found["a"]["ingress"] = ingress(True, rows=3_000)
    sample = series.look(at(2_000, found))
    assert sample is not None and sample.rows_per_s == 1_000.0
    # The one who has read most is gone: what the others have read does not make it less.
    sample = series.look(at(3_000, {**found, "a": dead("a")}))
    assert sample is not None and sample.rows_per_s == 666.67


def test_rates_are_over_the_last_seconds() -> None:
    """One pulse every two seconds, looked at every second: the rate is steady, not 0 and 1,000 in turn."""
    series, rates = Series(), []
    for second in range(20):
        found = states()
        found["a"]["ingress"] = ingress(True, rows=1_000 * (second // 2))
        sample = series.look(at(second * 1_000, found))
        rates.append(sample.rows_per_s if sample is not None else None)
    assert all(rate is not None and 350 <= rate <= 650 for rate in rates[8:])


def test_results_per_second_count_each_shard_once() -> None:
    series = Series()
    series.look(at(0, produced(10)))
    sample = series.look(at(1_000, produced(12)))
    assert sample is not None and sample.units_per_s == 4.0


def test_shards_that_feed_no_sink_are_no_results() -> None:
    series, found = Series(), states()
    for state in found.values():
        state["replicas"] = [{k: v for k, v in one.items() if k != "gap_ms"} for one in state["replicas"]]
    sample = series.look(at(0, found))
    assert sample is not None and (sample.gap_ms, sample.units_per_s) == (None, None)


def test_the_gap_is_that_of_the_worst_shard_and_its_best_replica() -> None:
    found = states()
    found["a"]["replicas"] = [replica("sums.0#0", gap_ms=50.0)]
    found["b"]["replicas"] = [replica("sums.0#1", gap_ms=4_000.0), replica("sums.1#0", gap_ms=700.0)]
    found["c"]["replicas"] = [replica("sums.1#1", gap_ms=900.0)]
    sample = Series().look(at(0, found))
    assert sample is not None and sample.gap_ms == 700.0


def test_the_gap_goes_on_while_nobody_can_be_asked() -> None:
    series = Series()
    series.look(at(0, states()))
    sample = series.look(at(5_000, states() | {"b": dead("b"), "c": silent("c")}))
    assert sample is not None and sample.gap_ms == 5_100.0


def test_a_flow_that_has_ended_has_no_gap() -> None:
    series = Series()
    series.look(at(0, states()))
    found = states()
    for state in found.values():
        over = [{k: v for k, v in one.items() if k != "gap_ms"} | {"final": 10} for one in state["replicas"]]
        state["replicas"] = over
    sample = series.look(at(60_000, found))
    assert sample is not None and sample.gap_ms is None


def test_a_pause_that_keeps_units_from_coming_is_no_gap() -> None:
    series = Series()
    series.look(at(0, states()))
    found = states()
    for state in found.values():
        state["pause"] = {"since_ms": NOW_MS, "why": ""}
        state["replicas"] = [{k: v for k, v in one.items() if k != "gap_ms"} for one in state["replicas"]]
    sample = series.look(at(60_000, found))
    assert sample is not None and sample.gap_ms == 0.0
    # Afterwards it is waited for results again, and not for those of the pause.
    for state in found.values():
        state["pause"] = None
    sample = series.look(at(63_000, found))
    assert sample is not None and sample.gap_ms == 3_000.0


def test_code_that_was_replaced_has_no_gap() -> None:
    series = Series()
    series.look(at(0, states()))
    shape = SHAPE | {"segments": {"sums@2": SHAPE["segments"]["sums"]}}
    found = states()
    for state in found.values():
        state["flow"], state["replicas"] = shape, []
    sample = series.look(at(60_000, found))
    assert sample is not None and sample.gap_ms is None


def test_latency_is_that_of_the_first_copy_and_of_units_that_came() -> None:
    series = Series()
    series.look(at(0, produced(10)))
    series.look(at(1_000, produced(10, latency_ms=9_999.0)))
    found = produced(11, latency_ms=400.0)
    found["a"]["replicas"][0]["latency_ms"] = 300.0
    sample = series.look(at(2_000, found))
    assert sample is not None and (sample.latency_p50_ms, sample.latency_p99_ms) == (300.0, 400.0)
    sample = series.look(at(2_000 + module.WINDOW_MS + 1, produced(11)))
    assert sample is not None and sample.latency_p50_ms is None, "results of long ago say nothing"


def test_lag_of_the_fastest_and_of_the_slowest() -> None:
    found = states()
    found["c"]["replicas"] = [replica("sums.1#1", lag_ms=8_000.0)]
    sample = Series().look(at(0, found))
    assert sample is not None and (sample.lag_ms, sample.slowest_lag_ms) == (20.0, 8_000.0)


def test_a_stopped_replica_does_not_lag() -> None:
    found = states()
    found["c"]["replicas"] = [replica("sums.1#1", lag_ms=8_000.0, reason="it diverged")]
    sample = Series().look(at(0, found))
    assert sample is not None and sample.slowest_lag_ms == 20.0


def test_time_that_stands_still_gives_no_sample() -> None:
    series = Series()
    assert series.look(at(0, states())) is not None
    assert series.look(at(0, states())) is None
    assert series.look(at(-5, states())) is None


def test_there_is_a_bound() -> None:
    series = Series()
    for second in range(SAMPLES + 10):
        series.look(at(second * 1_000, {}))
    series.check()
    assert len(series.samples) == SAMPLES


def test_columns_are_of_equal_length() -> None:
    series = Series()
    for second in range(3):
        series.look(at(second * 1_000, states()))
    found = columns(series.samples)
    assert {len(values) for values in found.values()} == {3}
    assert found["number"] == [1, 2, 3]


@given(st.lists(st.floats(0, 1e6), max_size=50), st.floats(0.01, 1))
def test_percentiles(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    if not ordered:
        assert found is None
        return
    assert found in ordered
    assert sum(1 for value in ordered if value <= found) >= share * len(ordered) - 1e-6
