"""The commands that the laboratory adds to ``unbroken``: ``demo``, ``bench``, ``chaos`` and ``simulate``."""

from __future__ import annotations

import click

from unbroken_lab.cli import chaos, demo, experiments, hwang, page, plan, reliability, simulate

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

COMMANDS: dict[str, tuple[click.Command, ...]] = {
    "Begin": (demo.demo,),
    "Try what fails": (chaos.chaos, simulate.simulate),
    "Measure": (experiments.bench,),
}
"""By what a person wants to do."""
