"""The file that says which runs have written to a sink's directory: damage is named, and never read as another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.connectors.failures import is_passing
from unbroken.connectors.files.run_file import NAME, RunFile
from unbroken.data.checksum import Damaged
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.run import RunIdentity

RUN = RunIdentity("a" * 32, frozenset())


def test_every_flipped_bit_is_found_and_the_remedy_is_named(tmp_path: Path) -> None:
    file = RunFile(tmp_path, lambda: True)
    path = tmp_path / NAME
    assert RunFile(tmp_path, lambda: False).claim(RUN, lambda: None) == 0
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(Damaged, match="Restore the file") as found:
            file.claim(RUN, lambda: None)
        assert str(path) in str(found.value) and is_passing(found.value) and file.last() is None
    path.write_bytes(raw)
    assert file.claim(RUN, lambda: None) == 0


def test_a_file_that_cannot_be_read_at_this_moment_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> bytes:
        raise OSError(5, "I/O")

    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(UnbrokenError, match="Check the disk") as found:
        RunFile(tmp_path, lambda: True).claim(RUN, lambda: None)
    assert not isinstance(found.value, Damaged)
