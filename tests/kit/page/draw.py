"""Draws the picture of the page in the documentation: ``python tests/kit/page/draw.py docs/images/page.png``.

The flow is simulated. Two nodes have failed and come back, a third is killed, and a fourth is frozen at the moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kit.page.browsing import Stage, browser, visited
from unbroken.page.actions import ActionRequest
from unbroken_lab.page.stages import shop


def draw(target: Path) -> None:
    stage = Stage(shop(), warm_up_s=20, period_s=0.3)

    def seconds(count: int) -> None:
        """Let so many simulated seconds be shown."""
        last = tab.evaluate("performance.getEntriesByName('update').length") + count
        tab.wait_for_function("(last) => performance.getEntriesByName('update').length >= last", arg=last)

    try:
        with browser() as found, visited(found, stage.url, {"width": 1440, "height": 1040}) as tab:
            seconds(20)
            stage.flow.do(ActionRequest("kill", "node-4"))
            seconds(75)
            stage.flow.do(ActionRequest("freeze", "node-1"))
            seconds(6)
            stage.flow.do(ActionRequest("thaw", "node-1"))
            seconds(60)
            stage.flow.do(ActionRequest("kill", "node-3"))
            tab.wait_for_function("() => document.querySelector('.cell.s-joining')")
            stage.flow.do(ActionRequest("freeze", "node-6"))
            tab.wait_for_function("() => document.querySelector('.cell.s-suspected')")
            tab.screenshot(path=target)
    finally:
        stage.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
