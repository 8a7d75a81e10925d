"""`unbroken zookeeper`: a server that nodes can be started with, and that ends with its command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.support import wait_until
from unbroken.local.zookeeper_server import serves

DEADLINE_S = 60.0


@pytest.mark.cluster
def test_the_server_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "unbroken", "zookeeper", "--dir", str(tmp_path / "zk"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            host, _, number = json.loads(running.stdout.readline())["address"].rpartition(":")
            port = int(number)
            assert serves(host, port)
            running.terminate()
            assert running.wait(DEADLINE_S) == 0
        finally:
            running.kill()
    wait_until(lambda: not serves(host, port), DEADLINE_S, "the server to be gone")
    assert (tmp_path / "zk" / "data").is_dir() and (tmp_path / "zk" / "zookeeper.log").is_file()
