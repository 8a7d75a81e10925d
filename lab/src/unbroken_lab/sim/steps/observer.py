"""What is asserted of every event and instruction where steps are chosen, beyond what the simulator asserts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.errors import broken
from unbroken.protocol.events import Event
from unbroken.protocol.instructions import Deliver, Instruction, Send
from unbroken.protocol.messages import Subscribe
from unbroken.protocol.values.ids import NodeId
from unbroken_lab.sim.content import is_fork
from unbroken_lab.sim.story import Story

if TYPE_CHECKING:
    from unbroken_lab.sim.world import World


class Observer(Story):
    """Looks at every event and instruction.

    Asserted: nodes refuse nothing that they tell each other (unless ``nonsense`` is about), what is to be delivered is
    in the outbox, and a copy of a whole flow takes its input from its own node alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nonsense = False
        self.world: World | None = None

    def begin(self, world: World) -> None:
        self.world = world

    def event(self, now_ms: float, name: NodeId, event: Event) -> None:
        world = self.world
        process = None if world is None else world.process(name)
        if process is not None and process.protocol is not None and not self.nonsense:
            refused = process.protocol.validation.reported
            if refused:
                broken(f"{name} refuses what nodes tell each other: {refused}, {event}")

    def step(self, now_ms: float, name: NodeId, step: Instruction) -> None:
        world = self.world
        if world is None:
            return
        if isinstance(step, Deliver) and not is_fork(step.replica):
            held = world.machines[name].disk.replicas[step.replica]
            key = (step.header.stream, step.header.number)
            if key not in held.outbox:
                broken(f"unit {key[1]} of {key[0]} is to be delivered and not there", key[0], unit=key[1])
        elsewhere = isinstance(step, Send) and isinstance(step.message, Subscribe) and step.to != name
        if world.topology.whole and elsewhere:
            broken(f"{name} asks another node for input: {step}")

    def sentence(self, now_ms: float, text: str) -> None:
        """Nothing is told."""

    def check(self) -> None:
        """What is asserted of the whole."""
