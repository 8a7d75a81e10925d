"""The errors Unbroken raises. Each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn


class UnbrokenError(Exception):
    """Base of every error that is meant to be read by a user."""


@dataclass(frozen=True)
class Problem:
    """One thing that keeps a dataflow from being run.

    ``where`` names the file and the part (segment, source, sink or setting), ``what`` the cause and
    ``remedy`` what the user can do about it.
    """

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n    -> {self.remedy}"


class FlowError(UnbrokenError):
    """A dataflow that cannot be run, with every problem that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class Refused(UnbrokenError):
    """What was asked for cannot be done as things are; nothing was changed."""


class Unreachable(UnbrokenError):
    """The flow that something is about is not there, or does not answer."""


class DeadlinePassed(UnbrokenError):
    """What was waited for did not happen in time; it may still."""


class Unfit(UnbrokenError):
    """Data that a connector will never take, however often it is given it: it is set aside instead of tried again."""


class InvariantViolation(AssertionError):
    """A protocol object found its own invariant broken: a bug in Unbroken, never a user's mistake."""


def require(condition: bool, message: str) -> None:
    """Assert an invariant; unlike ``assert`` it is also checked under ``python -O``."""
    if not condition:
        raise InvariantViolation(message)


def broken(message: str) -> NoReturn:
    """An invariant does not hold: for places so busy that the sentence should be made only when it is needed."""
    raise InvariantViolation(message)
