"""What benchmarks that kill a node make of their samples."""

from __future__ import annotations

from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.observation.figures import compare_shards, gap, judge, pulse


def sample(cut_ms: int, latency_ms: float) -> ArrivalSample:
    return ArrivalSample(pulse=0, rows=1, cut_ms=cut_ms, arrived_ms=cut_ms + latency_ms)


def test_latency_and_gaps_are_told_apart_by_the_kill_and_the_return() -> None:
    before = [sample(1_000 * i, 200) for i in range(10)]
    during = [sample(10_000 + 500 * i, 1_000) for i in range(4)]
    after = [sample(20_000, 300)]
    figures = judge([*before, *during, *after], killed_ms=9_500, restored_ms=13_000)
    assert figures["pulse_ms"] == 1_000
    assert [figures["latency_ms"][when]["max"] for when in ("before", "during", "after")] == [200, 1_000, 300]
    assert figures["gap_ms"] == {"before": 1_000, "during": 1_800}


def test_without_results_there_are_no_figures() -> None:
    figures = judge([], 1_000, 2_000)
    nothing = {"p50": None, "p99": None, "max": None}
    assert figures["latency_ms"] == {"before": nothing, "during": nothing, "after": nothing}
    assert figures["gap_ms"]["during"] == 0


def test_the_units_of_all_shards_have_the_same_pulse() -> None:
    assert pulse([sample(500 * i, 10 * shard) for i in range(5) for shard in range(3)]) == 500
    assert pulse([sample(500, 1)]) == 0


def test_a_gap_is_between_neighbours_in_time_whatever_the_order_of_the_samples() -> None:
    assert gap([sample(0, 100), sample(3_000, 100), sample(1_000, 100)]) == 2_000


def steady(shard_delay_ms: float) -> list[ArrivalSample]:
    return [sample(1_000 * i, 200 + shard_delay_ms) for i in range(10)]


def test_only_the_chosen_shards_are_compared() -> None:
    late = [sample(10_000, 5_000)]
    slightly_late = [sample(10_000, 900)]
    by_shard = {0: [*steady(0), *late], 1: [*steady(100), *slightly_late], 2: steady(0)}
    spared = compare_shards(by_shard, {2, 1}, killed_ms=9_900, restored_ms=20_000)
    assert spared["latency_ms"]["before"]["max"] == 300 and spared["latency_ms"]["during"]["max"] == 900
    assert spared["change_ms"] == {"p99": 600, "max": 600}
    assert spared["pulse_ms"]["before"] == 1_000 and spared["within_a_pulse"]
    hit = compare_shards(by_shard, {0}, killed_ms=9_900, restored_ms=20_000)
    assert hit["change_ms"]["max"] == 4_800 and not hit["within_a_pulse"]
    assert hit["gap_ms"] == {"before": 1_000, "during": 5_800}


def test_shards_that_gave_no_result_are_not_said_to_be_on_time() -> None:
    assert not compare_shards({0: steady(0)}, {0}, killed_ms=9_900, restored_ms=20_000)["within_a_pulse"]
    assert not compare_shards({}, set(), killed_ms=9_900, restored_ms=20_000)["within_a_pulse"]
