"""Words for notices about replicas, their state and their input."""

from __future__ import annotations

from unbroken.observe.notices.words import Topic, Words, megabytes, names
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import replicas as n

_FIRST, _SECOND, _THIRD = (ReplicaId(ShardId("per_user", 0), index) for index in range(3))
_INPUT = StreamId(ShardId("clicks", 0), ShardId("per_user", 0))
_OUTPUT = StreamId(ShardId("per_user", 0), ShardId("live", 0))
_JOIN = ReplicaId(ShardId("attackers", 0), 0)
_DAMAGE = "damaged file: 000000004711.arrow (its checksum is wrong)"


def whence(donor: str | None) -> str:
    return "its snapshot" if donor is None else donor


def _diverged(it: n.ReplicaDiverged) -> str:
    return (
        f"{it.replica} diverged from {it.kept}: unit {it.unit} of {it.stream} has {it.rows} rows (digest {it.digest}) "
        f"instead of {it.kept_rows} rows (digest {it.kept_digest})"
    )


def _taken(it: n.StateTaken) -> str:
    return (
        f"{it.replica} took over {megabytes(it.size_bytes)} at version {it.version} from {whence(it.donor)} in "
        f"{it.fetch_s:.1f} s and caught up in {it.catch_up_s:.1f} s"
    )


def _held(it: n.CopyHeld) -> str:
    size = megabytes(it.size_bytes)
    return f"{it.replica} holds {size} of version {it.version} from {whence(it.donor)} after {it.took_s:.1f} s"


def _impossible(it: n.RebuildImpossible) -> str:
    return (
        f"{it.replica} cannot be rebuilt: the producers that are left no longer have all input that its state was made "
        f"of: {names(it.streams)}. Restart a lost node on its disk: the replica waits for one that has it."
    )


def _ingress_unit(it: n.IngressUnitLost) -> str:
    return (
        f"{it.detail}, and no other replica has unit {it.unit} of {it.stream}. The node ends; when it is restarted it "
        "recomputes the unit from the ingress log."
    )


def _missing(it: n.InputMissing) -> str:
    how = "waits" if it.waits else "continues without it, tentatively"
    return f"{it.replica} lacks input of {names(it.parts) or 'its producers'} and {how}"


def _complete(it: n.InputComplete) -> str:
    how = "all its tentative results are replaced" if it.corrected else "in time"
    return f"{it.replica} has all its input again; {how}"


LOSSES = Topic(
    "Replicas that stop",
    (
        Words(
            n.ReplicaHalted,
            lambda it: f"{it.replica} stopped on {it.node}: {it.detail}",
            "a replica does not continue; it is rebuilt from a peer",
            "see [why replicas stop](#why-replicas-stop)",
            (
                n.ReplicaHalted(_SECOND, "node-2", "[DIVIDE_BY_ZERO] Division by zero"),
                n.ReplicaHalted(
                    _SECOND,
                    "node-1",
                    f"{_DAMAGE}, and no other replica has unit 4711 of per_user.0>live.0. Restart the node: it "
                    "recomputes the unit, or restores the shard from its last snapshot.",
                ),
            ),
        ),
        Words(
            n.ReplicaDiverged,
            _diverged,
            "two replicas have computed different results: a defect of the segment, or of Unbroken. The younger one is "
            "rebuilt from the older",
            "see [replicas diverge](#replicas-diverge)",
            (n.ReplicaDiverged(_SECOND, _FIRST, _OUTPUT, 41, 12, "5f3a", 12, "9b01"),),
        ),
        Words(
            n.CopyDiffers,
            lambda it: f"unit {it.unit} of {it.stream} from {it.sender} differs from the copy kept",
            "the same, found where the units arrive",
            "the same",
            (n.CopyDiffers(_INPUT, 12, "node-2"),),
        ),
        Words(
            n.ReplicaBehind,
            lambda it: f"{it.replica} is to be rebuilt: it is {it.units} units of {it.stream} behind its peer",
            "no more units are kept for a replica that is too slow",
            "look for a slow node; more `claim_units` give it longer",
            (n.ReplicaBehind(_SECOND, _INPUT, 1000),),
        ),
        Words(
            n.ReplicaReplaced,
            lambda it: f"{it.replica} on {it.node} was replaced and is dropped here",
            "a node that returned finds itself replaced and is free for other replicas",
            "",
            (n.ReplicaReplaced(_SECOND, "node-2"),),
        ),
        Words(
            n.ReplicaUnreadable,
            lambda it: f"{it.replica} is not taken from the disk of {it.node}: {it.detail}",
            "a file of the replica does not hold what was written; none of them is used",
            "nothing; the replica is copied from a peer. Check the disk",
            (
                n.ReplicaUnreadable(
                    _SECOND,
                    "node-2",
                    "damaged file: .unbroken/clicks/node-2/replicas/per_user.0#1/base (its checksum is wrong).",
                ),
            ),
        ),
        Words(
            n.ReplicasKeptAside,
            lambda it: (
                f"{it.node} keeps {names(it.directories)} aside, {megabytes(it.size_bytes)}, until redundancy is "
                "restored"
            ),
            "replicas without a place on the node whose state may exist only there",
            "nothing; they are removed when their shards are redundant. If the space is needed, let the flow have all "
            "its nodes",
            (n.ReplicasKeptAside("node-2", ("per_user.0#1", "per_user.0#4"), 120_500_000),),
        ),
    ),
)

UNITS = Topic(
    "Damaged units",
    (
        Words(
            n.UnitRefetched,
            lambda it: f"{it.replica} refetches unit {it.unit} of {it.stream} from its producers: {it.detail}",
            "a unit that had arrived was damaged on disk before it was processed",
            "nothing; its producers keep it. Check the disk",
            (n.UnitRefetched(_SECOND, _INPUT, 4711, f"{_DAMAGE}."),),
        ),
        Words(
            n.UnitWithheld,
            lambda it: (
                f"{it.replica} does not offer unit {it.unit} of {it.stream} until it has the copy of a sibling: "
                f"{it.detail}"
            ),
            "a unit that a replica had produced was damaged on disk; the copy of another replica takes its place",
            "nothing. Check the disk",
            (n.UnitWithheld(_SECOND, _OUTPUT, 4711, _DAMAGE),),
        ),
        Words(
            n.UnitRepaired,
            lambda it: f"{it.replica} has unit {it.unit} of {it.stream} once more, from {it.sender}",
            "the copy has arrived",
            "",
            (n.UnitRepaired(_SECOND, _OUTPUT, 4711, "node-1"),),
        ),
        Words(
            n.IngressUnitLost,
            _ingress_unit,
            "a unit of the ingress was damaged on disk, and no other member of the ingress could send it",
            "nothing where a supervisor restarts nodes. Check the disk",
            (n.IngressUnitLost(_INPUT, 4711, _DAMAGE),),
        ),
    ),
)

STATE = Topic(
    "Copies of state",
    (
        Words(
            n.StateTaken,
            _taken,
            "the state has arrived, and the replica keeps up",
            "",
            (
                n.StateTaken(_THIRD, "node-1", 4_200_000, 218, 0.4, 2.0),
                n.StateTaken(_THIRD, None, 4_200_000, 218, 0.4, 2.0),
            ),
        ),
        Words(
            n.ReplicaResumed,
            lambda it: (
                f"{it.replica} continued from its disk at version {it.version} and caught up in {it.catch_up_s:.1f} s"
            ),
            "a restarted node continues with a replica where it was",
            "",
            (n.ReplicaResumed(_FIRST, 214, 3.1),),
        ),
        Words(
            n.StateRebuilt,
            lambda it: f"{it.replica} has rebuilt its state from unit {it.unit} of its input on in {it.took_s:.1f} s",
            'the same for `ha="upstream"`, which has no state to copy',
            "",
            (n.StateRebuilt(_THIRD, 190, 3.4),),
        ),
        Words(
            n.StateNotFetched,
            lambda it: f"the state of {it.replica} was not copied from {whence(it.donor)}, retrying: {it.detail}",
            "the copy failed; another donor is asked, or the same again",
            "if it repeats: the reason names the network, a disk or a snapshot",
            (
                n.StateNotFetched(_THIRD, "node-1", "the connection broke"),
                n.StateNotFetched(_THIRD, None, "the file is damaged"),
            ),
        ),
        Words(
            n.ReplicaNotBegun,
            lambda it: f"{it.replica} cannot begin, retrying: {it.detail}",
            "the disk does not take the first files of a replica that is rebuilt from what its producers kept",
            "make room on the disk, or replace it",
            (n.ReplicaNotBegun(_THIRD, "no space left on device"),),
        ),
        Words(
            n.RebuildImpossible,
            _impossible,
            'with `ha="upstream"`, more than `k_safety` nodes were lost, or one more before the earlier losses were '
            "made up for. The segment waits and gives nothing wrong",
            "restart a lost node on its disk; for the future, a larger `k_safety`",
            (n.RebuildImpossible(_THIRD, (_INPUT,)),),
        ),
        Words(
            n.SnapshotOutdated,
            lambda it: (
                f"the last snapshot of {it.shard} is too old to keep all that followed it: the shard cannot be "
                "restored until there is another one"
            ),
            "snapshots have failed for a long time; the units that they would need are no longer kept",
            "see why they fail: the next row",
            (n.SnapshotOutdated(_FIRST.shard),),
        ),
        Words(
            n.SnapshotFailed,
            lambda it: f"no snapshot of {it.shard} could be made, retrying: {it.detail}",
            "the directory or store of `snapshots` is unavailable or refuses",
            "correct it; nothing else waits for it",
            (n.SnapshotFailed(_FIRST.shard, "Permission denied"),),
        ),
    ),
)

STANDBYS = Topic(
    "Standbys and leaders",
    (
        Words(
            n.StandbyPromoted,
            lambda it: f"{it.replica} on {it.node} sends {it.stream} from unit {it.unit} on: no elder is left",
            "an active standby continues where the primary stopped",
            "",
            (n.StandbyPromoted(_SECOND, "node-2", _OUTPUT, 40),),
        ),
        Words(
            n.CopyHeld,
            _held,
            "the first copy of a passive standby is whole",
            "",
            (n.CopyHeld(_SECOND, "node-1", 4_200_000, 218, 0.5),),
        ),
        Words(
            n.CopyOutdated,
            lambda it: f"the copy of {it.replica} was not brought up to date by {whence(it.donor)}: {it.detail}",
            "the copy stays at its last version and is retried",
            "if it repeats, look at that node",
            (n.CopyOutdated(_SECOND, "node-1", "the connection broke"),),
        ),
        Words(
            n.LeaderElected,
            lambda it: f"{it.node} orders the input of {it.shard} (term {it.term})",
            "this replica decides about micro-batches from here on ([orderings](ordering.md#taking-the-lead))",
            "if it changes all the time: `order_silence` is shorter than micro-batches",
            (n.LeaderElected("node-4", ShardId("counted", 0), 3),),
        ),
    ),
)

INPUT = Topic(
    "Missing input",
    (
        Words(
            n.InputMissing,
            _missing,
            "results are tentative from here on, or the policy is to wait",
            "look at the source or segment that is named",
            (n.InputMissing(_JOIN, ("west",), False), n.InputMissing(_JOIN, ("west",), True)),
        ),
        Words(
            n.InputReturned,
            lambda it: f"{it.replica} has its missing input and corrects results after unit {it.unit}",
            "corrections follow",
            "",
            (n.InputReturned(_JOIN, 812),),
        ),
        Words(
            n.InputComplete,
            _complete,
            "the failure is in the past; *in time*: the input arrived before anything tentative was shown",
            "",
            (n.InputComplete(_JOIN, True), n.InputComplete(_JOIN, False)),
        ),
        Words(
            n.ForkFailed,
            lambda it: f"{it.replica} cannot continue without its missing input: {it.detail}",
            "the fork failed; results wait, and it is retried later",
            "the reason is an error of the segment",
            (n.ForkFailed(_JOIN, "[CAST_INVALID_INPUT] ..."),),
        ),
        Words(
            n.UndoRefused,
            lambda it: f"{it.replica} goes back to its last state: not all input before it is kept",
            '`reconcile="undo"` had to take the checkpoint instead',
            "",
            (n.UndoRefused(_JOIN),),
        ),
    ),
    "These are about segments with an `availability` ([consistency](consistency.md)).",
)
