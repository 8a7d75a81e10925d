"""The results of Hwang et al. (2003) that can be cited: numbers of its text and tables.

Most of its results are drawn only. They are marked as not available here instead of being read off a picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken_lab.studies.hwang.model import INTERVALS_MS, Approach, Measure

PAIRS = (Approach.PASSIVE, Approach.ACTIVE)
ALL = (*PAIRS, Approach.UPSTREAM)


@dataclass(frozen=True)
class PaperPoint:
    """One result: of which approach, which measure, at which value of what varies, and what the paper says about it.

    ``value`` is None if the paper only draws it. ``how`` is "stated", "about", "below", "range" (``value`` to
    ``upper``) or "drawn". Overheads are shares (1.1, not 110 %), times are milliseconds; ``x`` is None if no value is
    given for what varies.
    """

    figure: str
    approach: Approach
    measure: Measure
    varies: str
    x: float | None
    value: float | None
    how: str
    upper: float | None = None

    @property
    def available(self) -> bool:
        return self.value is not None


def paper_points() -> tuple[PaperPoint, ...]:
    """Everything that is stated, then everything of the same figures that is drawn and not stated."""
    stated = (*_figures_8_to_10(), *_figure_11(), *_table_4(), *_figure_12())
    known = {(point.figure, point.approach, point.measure, point.x) for point in stated}
    drawn = [point for point in _drawn() if (point.figure, point.approach, point.measure, point.x) not in known]
    return (*stated, *drawn)


def _figures_8_to_10() -> list[PaperPoint]:
    overhead, interval, upstream = Measure.OVERHEAD, "interval_ms", Approach.UPSTREAM
    full, partial = Measure.FULL_RECOVERY, Measure.PARTIAL_RECOVERY
    return [
        *(PaperPoint("Figure 8", approach, overhead, interval, None, 1.0, "range", 1.1) for approach in PAIRS),
        PaperPoint("Figure 8", upstream, overhead, interval, None, 0.1, "below"),
        PaperPoint("Figure 8", upstream, overhead, interval, 40.0, 0.02, "about"),
        PaperPoint("Figure 8", upstream, overhead, interval, 80.0, 0.01, "about"),
        # One run each, in which passive standby had the luck of its best case.
        *(PaperPoint("Figure 9", approach, partial, "time_ms", None, 4.0, "about") for approach in PAIRS),
        PaperPoint("Figure 9", upstream, partial, "time_ms", None, 9.0, "about"),
        PaperPoint("Figure 10", upstream, full, interval, 40.0, 12.5, "stated"),
        PaperPoint("Figure 10", upstream, full, interval, 80.0, 14.0, "stated"),
    ]


def _figure_11() -> list[PaperPoint]:
    times = {Approach.ACTIVE: 8.0, Approach.PASSIVE: 11.0, Approach.UPSTREAM: 12.0}
    return [
        PaperPoint("Figure 11", approach, Measure.FULL_RECOVERY, "interval_ms", None, value, "about")
        for approach, value in times.items()
    ]


def _table_4() -> list[PaperPoint]:
    passive, overhead = Approach.PASSIVE, Measure.OVERHEAD
    by_boxes = {1: 1.063, 4: 1.094, 9: 1.124, 16: 1.157, 25: 1.187}
    by_selectivity = {1.0: 1.185, 0.8: 0.988, 0.6: 0.783, 0.4: 0.571, 0.2: 0.332}
    constant = {Approach.ACTIVE: 1.1, Approach.UPSTREAM: 0.06}
    return [
        *(PaperPoint("Table 4", passive, overhead, "boxes", x, value, "stated") for x, value in by_boxes.items()),
        *(PaperPoint("Table 4", passive, overhead, "selectivity", x, v, "stated") for x, v in by_selectivity.items()),
        *(PaperPoint("Table 4", approach, overhead, "boxes", None, v, "stated") for approach, v in constant.items()),
    ]


def _figure_12() -> list[PaperPoint]:
    """The largest increase of the bandwidth is that of 100 nodes; it is given as 900 % and 1800 %."""
    full, bandwidth = Measure.FULL_RECOVERY, Measure.BANDWIDTH
    times = {Approach.UPSTREAM: {4: 36.0, 16: 15.0, 100: 7.0}, Approach.PASSIVE: {4: 23.0, 16: 12.0}}
    return [
        *(
            PaperPoint("Figure 12", approach, full, "nodes", nodes, value, "stated")
            for approach, by_nodes in times.items()
            for nodes, value in by_nodes.items()
        ),
        PaperPoint("Figure 12", Approach.UPSTREAM, bandwidth, "nodes", 100, 9.0, "about"),
        PaperPoint("Figure 12", Approach.ACTIVE, bandwidth, "nodes", 100, 18.0, "about"),
    ]


def _drawn() -> list[PaperPoint]:
    over_intervals = (
        ("Figure 8", Measure.OVERHEAD),
        ("Figure 10", Measure.FULL_RECOVERY),
        ("Figure 11", Measure.OVERHEAD),
        ("Figure 11", Measure.FULL_RECOVERY),
    )
    return [
        *(
            PaperPoint(figure, approach, measure, "interval_ms", interval, None, "drawn")
            for figure, measure in over_intervals
            for approach in ALL
            for interval in INTERVALS_MS
        ),
        *(PaperPoint("Figure 9", approach, Measure.DELAY, "time_ms", None, None, "drawn") for approach in ALL),
        *(
            PaperPoint("Figure 12", approach, measure, "nodes", nodes, None, "drawn")
            for approach in ALL
            for measure in (Measure.FULL_RECOVERY, Measure.BANDWIDTH)
            for nodes in (4, 16, 36, 64, 100)
        ),
    ]
