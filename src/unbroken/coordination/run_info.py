"""How the other commands and clients on this machine reach a local run: the file that it leaves in its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.errors import UnbrokenError, Unreachable

RUN_FILE = "run.json"


@dataclass(frozen=True)
class _Stored:
    """The content of the file: where it lies says the rest."""

    flow: str
    zookeeper: str
    token_file: Path
    pid: int | None


_RUN = Codec(_Stored, "run-info", readable=True)


@dataclass(frozen=True)
class RunInfo:
    """How to reach a running flow, kept in its directory for the other commands; ``pid`` is who owns the run."""

    flow: str
    zookeeper: str
    token_file: Path
    directory: Path
    pid: int | None = None

    def write(self) -> None:
        unfinished = self.directory / f"{RUN_FILE}.tmp"
        unfinished.write_bytes(_RUN.encode(_Stored(self.flow, self.zookeeper, self.token_file, self.pid)))
        unfinished.replace(self.directory / RUN_FILE)

    @classmethod
    def read(cls, directory: Path) -> RunInfo:
        try:
            found = _RUN.decode((directory / RUN_FILE).read_bytes())
            return cls(found.flow, found.zookeeper, found.token_file, directory, found.pid)
        except FileNotFoundError:
            raise Unreachable(
                f"no flow has been started in {directory}. Start one with `unbroken run FILE`, "
                "or name its directory with --dir."
            ) from None
        except Undecodable as error:
            what = f"{directory / RUN_FILE} is damaged ({error})"
            raise UnbrokenError(f"{what}. If no flow runs there, delete {directory}.") from error
