"""When work that keeps failing is set aside instead of being tried once more.

A failure is *passing* if its cause may lie outside the data: a disk, a network, memory, a system that is unavailable.
Work that fails like that is tried until it succeeds. Any other failure is a function of the data and of the code, which
are the same on every node, so every node meets it, and trying once more cannot help: after a bounded number of attempts
the work is set aside, and the flow continues without it. Which failures pass, `unbroken.connectors.failures` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unbroken.errors import reason_of, require


def kind_of(error: BaseException) -> str:
    """What stays the same when a failure repeats itself: its class, and the line that raised it.

    A message does not: it may name an address, a time or a count.
    """
    kind, trace = type(error), error.__traceback__
    name = f"{kind.__module__}.{kind.__qualname__}"
    if trace is None:
        return name
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{name} at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


@dataclass
class Attempts:
    """How often one piece of work has failed in the same way.

    Invariant: ``count`` attempts in a row have ended with a failure of one ``kind``, none of them ``passing``;
    ``reason`` is that of the last. A passing failure, or another kind, begins a new count: only what repeats itself is
    a function of the data.
    """

    limit: int
    passing: Callable[[BaseException], bool]
    reason: str = ""
    count: int = 0
    kind: str = ""

    def failed(self, error: BaseException) -> bool:
        """An attempt has failed; whether the work is to be set aside."""
        if self.passing(error):
            self.reason, self.count, self.kind = "", 0, ""
            return False
        kind = kind_of(error)
        self.count = self.count + 1 if kind == self.kind else 1
        self.kind, self.reason = kind, reason_of(error)
        return self.count >= self.limit

    def check(self) -> None:
        require(self.limit >= 1, f"work is set aside after {self.limit} attempts")
        require((self.count == 0) == (self.kind == ""), "attempts are counted without a kind of failure")
        require((self.count == 0) == (self.reason == ""), "attempts are counted without a reason")
