"""Pictures of how things go on: the log of the ingress, a replica that joins, missing input, the way of a unit."""

from __future__ import annotations

from drawing import DEAD, DOUBT, GOOD, GROUND, INK, PALE, PLAIN, SECOND, SOURCE, Picture


def ingress_log() -> Picture:
    """One node decides where a pulse cuts; the others have it in their logs before it counts."""
    p = Picture(760, 330, "The ingress: one node decides where a pulse cuts, and all have it in their logs first")
    entries = ("pulse 40", "rows of till-1", "pulse 41", "pulse 42")
    for y, name in ((30, "node-1 leads the ingress"), (190, "node-2 follows")):
        p.box(150, y, 460, 92, "", GROUND)
        p.text(162, y + 20, name, anchor="start", bold=True)
        for number, entry in enumerate(entries):
            p.box(162 + number * 110, y + 36, 106, 38, entry, SECOND if entry == "pulse 42" else SOURCE)
    p.box(10, 120, 100, 60, "sources", SOURCE)
    p.arrow((110, 138), (148, 90), colour=SOURCE.edge)
    p.text(70, 106, "how far?", colour=SOURCE.edge)
    p.arrow((470, 104), (470, 224))
    p.text(462, 150, "1 append", anchor="end")
    p.arrow((530, 224), (530, 106))
    p.text(538, 150, "2 in my log", anchor="start")
    p.text(538, 170, "3 committed: both write units 42", anchor="start")
    p.box(640, 36, 112, 66, "units 42\nof every stream", GOOD)
    p.box(640, 206, 112, 66, "units 42\nof every stream", GOOD)
    p.arrow((598, 85), (638, 72))
    p.arrow((598, 245), (638, 238))
    p.text(
        380,
        314,
        "ZooKeeper keeps one document: in sync are node-1 and node-2, node-1 leads. It is asked only on a loss.",
    )
    return p


def joining() -> Picture:
    """A newcomer takes over the state of a survivor, which goes on meanwhile."""
    p = Picture(760, 330, "A newcomer copies the state of a survivor at version 7 while that one goes on")
    for y, name in ((62, "producers"), (142, "survivor"), (232, "newcomer")):
        p.text(100, y + 5, name, anchor="end", bold=True)
    for number in range(5, 14):
        x = 116 + (number - 5) * 68
        kept = number > 7
        p.box(x, 44, 60, 36, f"unit {number}", SOURCE if kept else PLAIN, dashed=kept)
        p.box(x, 124, 60, 36, f"{number}", GOOD)
    p.text(320, 32, "kept for the newcomer, as was promised before the copy", anchor="start", colour=SOURCE.edge)
    p.box(252, 214, 60, 36, "pin 7", SECOND)
    p.arrow((282, 160), (282, 212), colour=SECOND.edge)
    p.text(290, 190, "hard links", anchor="start", colour=SECOND.edge)
    p.box(320, 214, 128, 36, "copy files", SECOND, dashed=True)
    p.box(456, 214, 60, 36, "start", SECOND)
    for number, x in ((8, 524), (9, 556), (10, 588), (11, 620), (12, 652), (13, 684)):
        p.box(x, 214, 28, 36, str(number), GOOD)
    p.arrow((698, 250), (698, 284))
    p.text(720, 300, "caught up: it counts", anchor="end", colour=GOOD.edge)
    p.text(20, 300, "The survivor never stops. Until it has caught up, the newcomer is no redundancy.", anchor="start")
    return p


def tentative() -> Picture:
    """Input is missing for longer than the bound allows to wait."""
    p = Picture(760, 350, "West is missing: results are tentative after a while, and stable ones replace them")
    for y, name in ((60, "input of east"), (110, "input of west"), (180, "results"), (240, "state")):
        p.text(125, y + 5, name, anchor="end", bold=True)
    for number in range(1, 13):
        x = 136 + (number - 1) * 51
        p.box(x, 44, 46, 32, str(number), SOURCE)
        if number <= 3 or number >= 10:
            p.box(x, 94, 46, 32, str(number), SOURCE)
    p.box(289, 94, 301, 32, "away", DEAD, dashed=True)
    for number in (1, 2, 3):
        p.box(136 + (number - 1) * 51, 164, 46, 32, str(number), GOOD)
    p.text(340, 184, "waits: \N{GREEK SMALL LETTER ALPHA} * X", colour=PALE)
    for number in (6, 7, 8, 9):
        p.box(136 + (number - 1) * 51, 164, 46, 32, f"{number}?", DOUBT, dashed=True)
    p.box(595, 164, 97, 32, "4, 5, ... 11", GOOD)
    p.box(697, 164, 46, 32, "12", GOOD)
    for x, w, name, paint in (
        (136, 250, "stable", GOOD),
        (391, 199, "up-failure", DOUBT),
        (595, 97, "stabilization", SECOND),
    ):
        p.box(x, 226, w, 28, name, paint)
    p.box(697, 226, 46, 28, "stable", GOOD)
    p.arrow((595, 290), (595, 258), colour=DOUBT.edge)
    p.text(590, 306, "undo: what is tentative is replaced from here on", anchor="end", colour=DOUBT.edge)
    p.arrow((694, 290), (694, 258), colour=GOOD.edge)
    p.text(740, 306, "reconciled", anchor="end", colour=GOOD.edge)
    p.text(
        380,
        338,
        "Stable results are the same as without the failure. Who wants no others leaves the tentative ones out.",
    )
    return p


def way_of_a_unit() -> Picture:
    """What is said to whom, from a pulse to an acknowledgement."""
    lanes = {"leader": 90, "other": 280, "replica": 480, "query": 670}
    titles = {
        "leader": "ingress leader",
        "other": "other ingress node",
        "replica": "node with a replica",
        "query": "its Spark query",
    }
    steps = (
        ("leader", "leader", "pulse b: ask the sources"),
        ("leader", "other", "append entry b"),
        ("other", "leader", "in my log"),
        ("leader", "leader", "committed: write units b"),
        ("leader", "other", "committed"),
        ("leader", "replica", "unit b"),
        ("other", "replica", "unit b again (dropped)"),
        ("query", "replica", "what comes after b - 1?"),
        ("replica", "query", "b"),
        ("query", "query", "run micro-batch b"),
        ("query", "replica", "results are written"),
        ("replica", "replica", "send, deliver, tell digests"),
        ("query", "replica", "after b? (b is committed)"),
        ("replica", "leader", "acknowledge unit b"),
    )
    p = Picture(760, 96 + 34 * len(steps), "The way of a unit from the pulse to the acknowledgement")
    for lane, x in lanes.items():
        p.box(x - 80, 14, 160, 32, titles[lane], SOURCE if lane in ("leader", "other") else GOOD)
        p.line((x, 46), (x, 80 + 34 * len(steps)))
    for number, (who, whom, what) in enumerate(steps):
        y, x, to = 82 + 34 * number, lanes[who], lanes[whom]
        if who == whom:
            p.box(x - 4, y - 10, 8, 18, "", SECOND)
            side = -1 if who == "query" else 1
            p.text(x + 10 * side, y + 4, what, anchor="end" if side < 0 else "start", colour=INK)
            continue
        p.arrow((x, y), (to, y), dashed="dropped" in what, colour=PALE if "dropped" in what else INK)
        p.text((x + to) / 2, y - 5, what)
    return p


PICTURES = {
    "ingress-log": ingress_log,
    "joining": joining,
    "tentative": tentative,
    "way-of-a-unit": way_of_a_unit,
}
