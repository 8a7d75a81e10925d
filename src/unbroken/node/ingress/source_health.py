"""How the sources of a feeder are: which have trouble, since when, and what an operator wishes about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unbroken.node.ingress.lanes import Lane
from unbroken.observe.status.node import StuckSource
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.values.notices.ingress import RowsSetAside, RowsSkipped
from unbroken.security.secret import masked


class SourceHealth:
    """Looks at the lanes of a feeder. ``renew`` has a lane read with another reader."""

    def __init__(self, lanes: Mapping[str, Lane], renew: Callable[[str], None]) -> None:
        self._lanes = lanes
        self._renew = renew
        self._away_ms: dict[str, int | None] = {}

    @property
    def behind(self) -> bool:
        """Whether there is more to be read, now or after a while."""
        return any(lane.steps for lane in self._lanes.values())

    @property
    def failing(self) -> bool:
        """Whether a source that is to be read has failed, and not only taken long."""
        return any(lane.failed for lane in self._lanes.values() if lane.steps)

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why sources cannot be read at this moment, while others are."""
        return {name: masked(lane.trouble) for name, lane in self._lanes.items() if lane.trouble}

    def reached(self, name: str, reachable: bool, cut_ms: int) -> None:
        """Whether a source could be asked when a committed pulse was cut."""
        self._away_ms[name] = None if reachable else self._away_ms.get(name) or cut_ms

    def unreached_ms(self, newest_ms: int) -> Mapping[str, int]:
        """For how long sources could not be asked up to ``newest_ms`` by the clock of the log, while others were."""
        return {name: newest_ms - since for name, since in dict(self._away_ms).items() if since is not None}

    def asking_s(self) -> dict[str, float]:
        """For how long sources that are asked how far they can be read have not answered. Any thread may call it."""
        return {name: age_s for name, lane in self._lanes.items() if (age_s := round(lane.asking_s, 1))}

    def stuck(self) -> dict[str, StuckSource]:
        """The sources that have a committed pulse to be read, the first such pulse of each, for how long, and why.

        May be called by any thread.
        """
        found: dict[str, StuckSource] = {}
        for name, lane in self._lanes.items():
            try:
                step = lane.steps[0]
            except IndexError:
                continue
            # One that is committed is on the disks of all members, and outlives a restart of each of them.
            held = lane.holds.agreed.get(step.pulse, 0)
            found[name] = StuckSource(
                pulse=step.pulse,
                seconds=round(lane.stuck_s, 1),
                trouble=masked(lane.trouble),
                held=held,
                hangs=lane.hangs,
            )
        return found

    def take_wish(self, index: int, wish: SkipRequest) -> RowsSkipped | None:
        """A wish about a source is committed; what is to be told of it."""
        lane = self._lanes.get(wish.source)
        if lane is None or wish.pulse <= lane.done:
            return None  # it is older than the base, or was refused
        before = len(lane.holds.skipped)
        lane.holds.committed(index, wish)
        if len(lane.holds.skipped) == before:
            return None
        if lane.hangs:
            # A call that never comes back would keep all that is asked after it waiting.
            self._renew(wish.source)
        return RowsSkipped(wish.source, wish.pulse, masked(lane.trouble))

    def holds(self) -> dict[tuple[str, int], int]:
        """The pulses that are held at this moment, by source, with the entry that holds them."""
        return {(name, pulse): at for name, lane in self._lanes.items() for pulse, at in lane.holds.agreed.items()}

    def set_aside(self) -> list[RowsSetAside]:
        """The notices about rows that were set aside since this was asked last."""
        out: list[RowsSetAside] = []
        for name, lane in self._lanes.items():
            reasons, lane.aside = lane.aside, []
            for reason in reasons:
                out.append(RowsSetAside(name, reason))
        return out
