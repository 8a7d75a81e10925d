"""The commands that the laboratory adds to ``unbroken``: ``demo``, ``bench``, ``chaos`` and ``simulate``."""

from __future__ import annotations

import click

from unbroken_lab.cli import bench, demo, hwang, page, papers, peers, plan, reliability, simulate

simulate.simulate.fill(
    {
        "Commands": (
            *simulate.COMMANDS,
            page.simulate_page,
            *reliability.COMMANDS,
            *plan.COMMANDS,
            *hwang.COMMANDS,
        )
    }
)
bench.bench.fill(
    {
        "Unbroken itself": (*bench.COMMANDS, page.bench_page),
        "Beside others": (*papers.COMMANDS, *peers.COMMANDS),
    }
)

COMMANDS: dict[str, tuple[click.Command, ...]] = {
    "Begin": (demo.demo,),
    "Try what fails": (bench.chaos, simulate.simulate),
    "Measure": (bench.bench,),
}
"""By what a person wants to do."""
