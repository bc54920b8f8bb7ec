"""A reader looked for an entry just before it was appended, and then once more: the second look named its place in the
file, where nothing was written yet, and the entry was taken for damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorum.log import Log
from quorum.log.table import Body, GroupTable
from support.log.disk import SimDisk


def test_an_entry_that_comes_between_two_looks_is_read_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(Path("/log"), SimDisk(1))
    log.journal(1).append([b"the body"], 1, 1)
    looks: list[int] = []
    locate = GroupTable.locate

    def late(table: GroupTable, index: int) -> Body | None:
        looks.append(index)
        return None if len(looks) == 1 else locate(table, index)

    monkeypatch.setattr(GroupTable, "locate", late)
    assert log.read_entry(1, 1) == (1, b"the body")
    assert len(looks) == 2
    assert not log.damages
    log.close()
