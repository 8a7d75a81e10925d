"""The few calls of Flink's REST interface that are needed to run a job and to find out where its tasks are."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError

CALL_S = 20.0
SUBMIT_S = 120.0
"""A job is planned while its submission is waited for, which takes seconds in a JobManager that has just begun, and
many on a machine that is busy."""


class FlinkRest:
    """Talks to the JobManager at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def task_managers(self) -> list[str]:
        """Those that have announced themselves; none while the JobManager does not answer yet."""
        try:
            return [str(each["id"]) for each in self._call("/taskmanagers")["taskmanagers"]]
        except UnbrokenError:
            return []

    def run(self, jar: Path, entry: str, arguments: Sequence[str], parallelism: int) -> str:
        """Submit a job; its id."""
        boundary = uuid.uuid4().hex
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="jarfile"; filename="{jar.name}"\r\n'
        head += "Content-Type: application/x-java-archive\r\n\r\n"
        body = head.encode() + jar.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        uploaded = self._call("/jars/upload", body, f"multipart/form-data; boundary={boundary}")
        name = Path(str(uploaded["filename"])).name
        what = {"entryClass": entry, "programArgsList": list(arguments), "parallelism": parallelism}
        started = self._call(f"/jars/{name}/run", json.dumps(what).encode(), deadline_s=SUBMIT_S)
        return str(started["jobid"])

    def source_manager(self, job: str) -> str:
        """The TaskManager that runs the source of a job."""
        vertices = self._call(f"/jobs/{job}")["vertices"]
        source = next((each for each in vertices if str(each["name"]).startswith("Source:")), None)
        if source is None:
            raise UnbrokenError(f"Flink's job has no source among {[each['name'] for each in vertices]}")
        return str(self._call(f"/jobs/{job}/vertices/{source['id']}")["subtasks"][0]["taskmanager-id"])

    def hosts(self, job: str) -> set[str]:
        """The TaskManagers that run some task of a job."""
        vertices = self._call(f"/jobs/{job}")["vertices"]
        details = [self._call(f"/jobs/{job}/vertices/{each['id']}") for each in vertices]
        return {str(task["taskmanager-id"]) for each in details for task in each["subtasks"]}

    def _call(
        self, path: str, body: bytes | None = None, kind: str = "application/json", deadline_s: float = CALL_S
    ) -> dict[str, Any]:
        headers = {"Content-Type": kind} if body is not None else {}
        request = urllib.request.Request(self._base + path, data=body, headers=headers)
        # A proxy of the environment is not for this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=deadline_s) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:2000]
            raise UnbrokenError(f"Flink refused {path}: {said}") from error
        except (OSError, ValueError) as error:
            raise UnbrokenError(f"Flink did not answer {path}: {error}") from error
