"""The errors Unbroken raises. Each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

LONGEST_REASON = 500
"""Characters of a reason: it is part of the history and of a dead letter, and may quote the data."""


class UnbrokenError(Exception):
    """Base of every error that is meant to be read by a user: what is wrong and, where it is known, the ``remedy``.

    Both have defaults for classes that are errors of a library, too, and do not run this constructor.
    """

    what: str = ""
    remedy: str = ""

    def __init__(self, what: str = "", remedy: str = "") -> None:
        super().__init__(what, *([remedy] if remedy else []))
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return str(Flaw(self.what, self.remedy)) if self.remedy else self.what or super().__str__()


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a declaration, and what the user can do about it, as parts of a sentence without its end.

    The caller that knows the file and the part makes a `Problem` of it.
    """

    what: str
    remedy: str

    def at(self, where: str) -> Problem:
        return Problem(where, self.what, self.remedy)

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}."


class WrongValue(ValueError):
    """A value that a user wrote and that cannot be meant so; raised where others expect a ValueError."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.flaw = Flaw(what, remedy)

    def __str__(self) -> str:
        return f"{self.flaw.what}; {self.flaw.remedy}"


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
    """A protocol object found its own invariant broken: a bug in Unbroken, never a user's mistake.

    ``about`` are the streams, shards and replicas that it is about, ``unit`` is the number of a unit (0: none).
    """

    def __init__(self, message: str, about: tuple[object, ...] = (), unit: int = 0) -> None:
        self.about = about
        self.unit = unit
        super().__init__(message)


def require(condition: bool, message: str, *about: object, unit: int = 0) -> None:
    """Assert an invariant; unlike ``assert`` it is also checked under ``python -O``."""
    if not condition:
        raise InvariantViolation(message, about, unit)


def broken(message: str, *about: object, unit: int = 0) -> NoReturn:
    """An invariant does not hold: for places so busy that the sentence should be made only when it is needed."""
    raise InvariantViolation(message, about, unit)


def reason_of(error: BaseException) -> str:
    """A failure in one bounded line. Making it never fails: the message of an error may be as wild as the data."""
    try:
        text = " ".join(str(error)[: 2 * LONGEST_REASON].split())
    except BaseException:
        text = ""
    name = type(error).__name__
    if text and isinstance(error, UnbrokenError | OSError):
        return text[:LONGEST_REASON]  # these are meant to be read as they are
    return (f"{name}: {text}" if text else name)[:LONGEST_REASON]
