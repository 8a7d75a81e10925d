"""Undo: a replica gets rid of tentative state by processing the input that still matters once more."""

from __future__ import annotations

from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.undo.instructions import UndoEffects, UndoReplica
from unbroken.protocol.policies.undo.policy import UndoLogs

VOCABULARY = (UndoReplica, UndoEffects)


def build(kernel: Kernel) -> UndoLogs:
    return UndoLogs(kernel.around)
