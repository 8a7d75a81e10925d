"""How the other commands and clients on this machine reach a local run: the file that it leaves in its directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import UnbrokenError, Unreachable

RUN_FILE = "run.json"


@dataclass(frozen=True)
class RunInfo:
    """How to reach a running flow, kept in its directory for the other commands; ``pid`` is who owns the run."""

    flow: str
    zookeeper: str
    token_file: Path
    directory: Path
    pid: int | None = None

    def write(self) -> None:
        value = {"flow": self.flow, "zookeeper": self.zookeeper, "token_file": str(self.token_file), "pid": self.pid}
        unfinished = self.directory / f"{RUN_FILE}.tmp"
        unfinished.write_text(json.dumps(value))
        unfinished.replace(self.directory / RUN_FILE)

    @classmethod
    def read(cls, directory: Path) -> RunInfo:
        try:
            value = json.loads((directory / RUN_FILE).read_text())
            token_file = Path(value["token_file"])
            return cls(value["flow"], value["zookeeper"], token_file, directory, value.get("pid"))
        except FileNotFoundError:
            raise Unreachable(
                f"no flow has been started in {directory}. Start one with `unbroken run FILE`, "
                "or name its directory with --dir."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            what = f"{directory / RUN_FILE} is damaged ({type(error).__name__}: {error})"
            raise UnbrokenError(f"{what}. If no flow runs there, delete {directory}.") from error
