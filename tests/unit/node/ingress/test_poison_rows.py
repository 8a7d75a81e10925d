"""Poison through the real ingress, from push to unit: the flow continues, and so does one that restarts on its log."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

from kit.ingress.fake_node import REPLICA, FakeNode
from kit.places import TESTS
from kit.support import wait_until
from unbroken import Client, Dataflow, Generator
from unbroken.connectors.push.http import PushServer
from unbroken.connectors.push.source import Push
from unbroken.data.rows.budget import BAD_ROWS
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.events import Produced

DEADLINE_S = 20.0
TOKEN = "0123456789abcdef" * 4

POISON = {
    "a number without bounds": b'{"user":1e1000000000000000000000}',
    "a number without bounds in a field that is ignored": b'{"zz":1e1000000000000000000000}\n{',
    "nesting of all depths": b"\n".join(b'{"n":' + b"[" * d + b"]" * d + b"}" for d in range(900, 1000)),
    "a decimal with a far exponent": b'{"price":1e-9999999}',
    "a decimal with many digits": b'{"price":0.' + b"0" * 200_000 + b"1}",
    "garbage": b"{\n" * 100_000,
}


def make_flow() -> Dataflow:
    flow = Dataflow("shop", nodes=2)
    flow.source("pushed", Push("user string, n long, price decimal(10,2)"))
    flow.source("made", Generator(rate=100))
    flow.segment("pushed", "made", name="seg")(lambda a, b: a)
    flow.sink("out", "seg", Client())
    return flow


def made(node: FakeNode) -> int:
    return max((h.number for e in node.events if isinstance(e, Produced) for h in e.headers), default=0)


def has_made(node: FakeNode, number: int) -> bool:
    return made(node) == number


def open_node(directory: Path, *, begin: bool) -> FakeNode:
    dirs = ReplicaDirs(directory)
    dirs.identity()
    node = FakeNode(make_flow(), dirs)
    if begin:
        dirs.begin([REPLICA])
    node.open()
    return node


def run_through(directory: Path, poison: bytes) -> None:
    """Push a good row, the poison and another good row; then restart from the directory."""
    node = open_node(directory, begin=True)
    service = node.service
    assert service is not None
    source = node.flow.sources["pushed"].connector
    with PushServer("127.0.0.1", 0, TOKEN, service.submit, sources={"pushed": source}) as server:
        for number, body in enumerate((b'{"user":"a","n":1}', poison, b'{"user":"b","n":2}'), start=1):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
            headers = {"Authorization": f"Bearer {TOKEN}", "X-Producer-Id": "p", "X-Sequence": str(number)}
            connection.request("POST", "/push/pushed", body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            connection.close()
            node.pulse(number)
            wait_until(partial(has_made, node, number), DEADLINE_S, f"unit {number}")
    assert node.feeder.bad_rows > 0 and node.story == []
    entries = IngressLogFile(node.dirs.ingress_log(REPLICA)).read()
    service.close()
    again = open_node(directory, begin=False)
    assert again.service is not None
    for entry in entries:
        again.service.commit(entry)
    wait_until(lambda: made(again) == 3, DEADLINE_S, "all units after a restart")
    again.service.close()


def test_poison_rows_stop_nothing(tmp_path: Path) -> None:
    """In a process of its own: some of these once ended it."""
    code = f"""
    import sys
    sys.path.insert(0, {str(TESTS)!r})
    from pathlib import Path
    from unit.node.ingress.test_poison_rows import POISON, run_through
    for number, (name, poison) in enumerate(POISON.items()):
        print(name, flush=True)
        run_through(Path({str(tmp_path)!r}) / str(number) / "node", poison)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-2000:])
    assert done.stdout.splitlines() == list(POISON)
    for number in range(len(POISON)):
        files = [file for file in (tmp_path / str(number)).rglob("*.jsonl") if file.is_file()]
        letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert 0 < len(letters) <= BAD_ROWS + 1 and sum(file.stat().st_size for file in files) < 2_000_000
