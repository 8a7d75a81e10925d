"""Types are looked into before several threads can read values of them.

msgspec looks into a type when a value of it is first read. A second thread that reads one meanwhile finds half of what
it needs, and the process ends with SIGSEGV.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 120.0
TESTS = Path(__file__).parents[2]

WATCHED = """
import sys

looked = []

def watch(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        looked.append(frame.f_code.co_filename)

import msgspec
sys.setprofile(watch)
msgspec.json.Decoder(msgspec.defstruct("Control", [("x", int)]))
assert looked, "msgspec does not look into types in the way that is watched here"
sys.setprofile(None)
looked.clear()
"""

STATUSES = """
from kit.statuses import running
from unbroken.observe.status.codec import decode, decode_node, encode
from unbroken.observe.status.flow import FlowStatus

status = encode(running())
sys.setprofile(watch)
decode_node(status, "a")
try:
    decode(FlowStatus, b'{"schema":1}')
except Exception:
    pass
"""

NOTICES = """
from unbroken.codecs import derivation
from unbroken.protocol.values.notices import Severity, known_kinds

for kind in known_kinds():
    derivation._fields_of(kind)
    sys.setprofile(watch)
    try:
        derivation.notice_from(kind, Severity.INFO, {})
    except ValueError:
        pass  # it has other fields
    sys.setprofile(None)
"""

ENTRIES = """
from unbroken.codecs.codec import CODECS, Undecodable
from unbroken.coordination import documents
from unbroken.transport import codec

sys.setprofile(watch)
for each in CODECS.values():
    try:
        each.decode(each._head + (b"{}" if each.readable else bytes([0x90])))
    except Undecodable:
        pass
"""


@pytest.mark.parametrize("reads", [STATUSES, NOTICES, ENTRIES], ids=["statuses", "notices", "codecs"])
def test_nothing_is_looked_into_when_a_value_is_read(reads: str) -> None:
    code = f"{WATCHED}{reads}\nsys.setprofile(None)\nassert not looked, looked"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
