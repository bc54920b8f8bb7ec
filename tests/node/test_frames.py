"""The kinds of frames between members, and their owners (quorum/node/wire/frames.py)."""

from __future__ import annotations

import pytest
import structlog

from quorum.node.wire.frames import FrameTable
from quorum.replication.network.handshake import LOWEST_WIRE_VERSION, WIRE_VERSION
from support.cluster import Cluster


def test_every_kind_of_frame_exists_in_the_wire_version_of_this_build() -> None:
    since = Cluster(1).members["n1"]._frames.since
    assert since
    assert LOWEST_WIRE_VERSION <= WIRE_VERSION
    assert all(1 <= version <= WIRE_VERSION for version in since.values())


def test_a_kind_of_frame_has_one_owner() -> None:
    table = FrameTable(structlog.get_logger())
    table.add(7, lambda peer, data, now_ms: None, since=3)
    assert table.since == {7: 3}
    with pytest.raises(AssertionError, match="two owners of frame kind 7"):
        table.add(7, lambda peer, data, now_ms: None, since=3)
