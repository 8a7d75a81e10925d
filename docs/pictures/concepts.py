"""The pictures of docs/concepts.md: units and pulses, first copies, and where things run."""

from __future__ import annotations

from drawing import DEAD, DOUBT, GOOD, GROUND, INK, PALE, SECOND, SOURCE, Picture


def units() -> Picture:
    """Pulses cut the sources; what is between two cuts is a unit; micro-batch b takes unit b of each input."""
    p = Picture(760, 330, "Pulses cut two sources into numbered units; micro-batch b takes unit b of both")
    left, width = 150, 150
    for number in range(5):
        x = left + number * width
        p.line((x, 34), (x, 300), dashed=True)
        if number:
            p.text(min(x, 730), 24, f"pulse {number}", colour=PALE)
    for y, name in ((70, "source clicks"), (130, "source views"), (215, "micro-batches"), (275, "results")):
        p.text(135, y + 5, name, anchor="end", bold=True)
    for number, (clicks, views) in enumerate(((5, 2), (7, 0), (4, 3), (6, 2)), 1):
        x = left + (number - 1) * width + 8
        p.arrow((x + 100, 92), (x + 100, 196))
        for y, count in ((70, clicks), (130, views)):
            p.box(x, y - 22, width - 16, 44, "", SOURCE)
            p.dots(x + 8, y + 9, width - 32, count)
            p.text(x + 8, y - 6, f"unit {number}" + ("" if count else ", empty"), anchor="start")
        p.arrow((x + 34, 152), (x + 34, 196))
        p.box(x, 196, width - 16, 36, f"micro-batch {number}", GOOD)
        p.arrow((x + 67, 232), (x + 67, 259))
        p.box(x, 259, width - 16, 34, f"unit {number}", GOOD)
    p.text(
        380, 318, "Every replica takes the same units in the same micro-batch, so all of them have the same results."
    )
    return p


def first_copy() -> Picture:
    """Two replicas send the same units; the first copy of a number is taken."""
    p = Picture(760, 300, "Two replicas send the same units; the first copy of each number is taken")
    for y, name in ((40, "node-1"), (170, "node-2")):
        p.box(20, y, 190, 100, "", GROUND)
        p.text(32, y + 20, name, anchor="start", bold=True)
    p.box(40, 72, 150, 48, "per_user.0#0", GOOD)
    p.box(40, 202, 150, 48, "per_user.0#1", GOOD)
    p.box(540, 30, 200, 240, "", GROUND)
    p.text(552, 50, "who reads the results", anchor="start", bold=True)
    p.arrow((190, 84), (560, 84))
    p.text(375, 76, "unit 7")
    p.box(560, 68, 160, 32, "unit 7: taken", GOOD)
    p.arrow((190, 214), (400, 214), (400, 126), (560, 126), dashed=True, colour=PALE)
    p.text(295, 207, "unit 7 again", colour=PALE)
    p.box(560, 110, 160, 32, "unit 7: there already", SECOND, dashed=True)
    p.line((190, 110), (300, 110), colour=DEAD.edge)
    p.cross(310, 110)
    p.text(326, 107, "node-1 dies", anchor="start", colour=DEAD.edge)
    p.arrow((190, 238), (450, 238), (450, 186), (560, 186))
    p.text(295, 231, "unit 8")
    p.box(560, 170, 160, 32, "unit 8: taken", GOOD)
    p.text(640, 236, "nothing was noticed,")
    p.text(640, 254, "nobody was waited for")
    return p


def nodes() -> Picture:
    """A flow of two segments on three nodes."""
    p = Picture(760, 360, "Two segments with two replicas per shard, and the ingress, on three nodes")
    boxes: dict[str, tuple[float, float]] = {}
    plan = {
        "node-1": (("ingress 0, leads", SOURCE), ("sessions.1#1", GOOD), ("stats.0#0", GOOD)),
        "node-2": (("ingress 1", SOURCE), ("sessions.0#0", GOOD), ("stats.0#1", GOOD)),
        "node-3": ((None, SOURCE), ("sessions.0#1", GOOD), ("sessions.1#0", GOOD)),
    }
    for row, (node, parts) in enumerate(plan.items()):
        y = 20 + row * 105
        p.box(110, y, 540, 92, "", GROUND)
        p.text(122, y + 18, node, anchor="start", bold=True)
        for column, (name, paint) in enumerate(parts):
            x = 130 + column * 180
            if name is not None:
                p.box(x, y + 32, 140, 44, name, paint)
                boxes[name] = (x, y + 54)
    p.box(8, 120, 76, 50, "source", SOURCE)
    p.box(676, 70, 76, 50, "sink", SECOND)
    for name in ("ingress 0, leads", "ingress 1"):
        p.arrow((84, 145), (128, boxes[name][1]), colour=SOURCE.edge)
    left, top = boxes["ingress 0, leads"]
    p.arrow((left + 70, top + 22), (left + 70, boxes["ingress 1"][1] - 24), dashed=True, colour=SOURCE.edge)
    p.text(left + 76, top + 50, "log", anchor="start", colour=SOURCE.edge)
    for name in ("stats.0#0", "stats.0#1"):
        left, top = boxes[name]
        p.arrow((left + 140, top), (674, 95), colour=GOOD.edge)
    p.text(380, 350, "Two replicas of a shard never share a node. Any node can be lost.", colour=INK)
    return p


def strategies() -> Picture:
    """What runs, what is kept and what a loss sets off, for each way to keep a segment available."""
    p = Picture(760, 300, "What each strategy keeps on other nodes while all is well")
    heads = ("active", "active-standby", "passive", "upstream", "none")
    notes = (
        ("both send,", "the first copy wins"),
        ("the second one", "keeps its results"),
        ("a copy of the state,", "brought up to date"),
        ("producers keep", "input longer"),
        ("nothing is kept", "elsewhere"),
    )
    gaps = ("no gap", "a moment", "seconds", "seconds", "until it is back")
    for number, head in enumerate(heads):
        x = 14 + number * 150
        p.box(x, 14, 136, 226, "", GROUND)
        p.text(x + 68, 36, head, bold=True)
        p.box(x + 18, 52, 100, 40, "replica", GOOD)
        match head:
            case "active":
                p.box(x + 18, 112, 100, 40, "replica", GOOD)
            case "active-standby":
                p.box(x + 18, 112, 100, 40, "replica, silent", SECOND)
            case "passive":
                p.box(x + 18, 112, 100, 40, "copy of state", SECOND, dashed=True)
            case "upstream":
                p.box(x + 18, 112, 100, 40, "kept input", SOURCE, dashed=True)
        for line, text in enumerate(notes[number]):
            p.text(x + 68, 186 + 18 * line, text)
        p.text(x + 68, 264, gaps[number], bold=True, colour=GOOD.edge if number < 2 else DOUBT.edge)
    p.text(380, 290, "below: how long results pause when the node is lost", colour=PALE)
    return p


PICTURES = {"units": units, "first-copy": first_copy, "nodes": nodes, "strategies": strategies}
