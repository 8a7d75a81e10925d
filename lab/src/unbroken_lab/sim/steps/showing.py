"""A sink that notes when which results are shown, and which of them twice."""

from __future__ import annotations

from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content
from unbroken_lab.sim.kernel import Kernel
from unbroken_lab.sim.sinks import Sink


class ShownSink(Sink):
    """A sink with a ledger that takes a tentative unit only if that reaches beyond all that it has.

    ``overlaps`` counts those that cover a pulse a second time, which is possible when another replica, or another fork,
    takes over: what they take in one micro-batch may differ. A unit that also covers pulses that are stable by now is
    none of these: a fork that was kept ready is behind, and takes all that has come since in one micro-batch.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.highest: dict[StreamId, int] = {}
        self.accepted = 0
        self.overlaps = 0
        self._kernel = kernel
        self._shown: dict[StreamId, int] = {}
        self._reached: dict[StreamId, list[tuple[float, float, bool]]] = {}

    def write(self, stream: StreamId, number: int, content: Content, now_ms: float) -> bool:
        new = super().write(stream, number, content, now_ms)
        if new:
            self._note_shown(stream, number, content, stable=True)
        return new

    def write_tentative(self, stream: StreamId, header: UnitHeader, content: Content) -> None:
        super().write_tentative(stream, header, content)
        if header.pulse <= max(self.highest.get(stream, 0), self.through(stream)):
            return
        self.accepted += 1
        self.overlaps += header.since < self._shown.get(stream, 0)
        self._shown[stream] = header.pulse
        self._note_shown(stream, header.pulse, content, stable=False)

    def reached_ms(self, stream: StreamId, cut_ms: float, *, stable: bool) -> float | None:
        """When results of a cut, or of a later one, were first there: stable ones, or any; None if they are not."""
        found = self._reached.get(stream, [])
        return next((at for at, cut, firm in found if cut >= cut_ms and (firm or not stable)), None)

    def newest_cut_ms(self, stream: StreamId, *, stable: bool) -> float:
        """The newest cut of which there are results: stable ones, or any."""
        found = self._reached.get(stream, [])
        return max((cut for _, cut, firm in found if firm or not stable), default=0.0)

    def _note_shown(self, stream: StreamId, pulse: int, content: Content, *, stable: bool) -> None:
        self.highest[stream] = max(pulse, self.highest.get(stream, 0))
        self._reached.setdefault(stream, []).append((self._kernel.now_ms, content.cut_ms, stable))
