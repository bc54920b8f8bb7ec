"""The kinds of frames between members, and their owners (quorum/node/wire/frames.py)."""

from __future__ import annotations

import random

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from quorum.node.wire.frames import Frame, FrameTable
from quorum.replication.network.handshake import LOWEST_WIRE_VERSION, WIRE_VERSION
from support.members.cluster import Cluster

MARK_BYTES = 8
"""Any so many bytes are a right frame about a rolled-back disk, and end the member."""


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


@pytest.fixture(scope="module")
def carried() -> tuple[Cluster, list[Frame]]:
    """A cluster at work, and frames of every kind that its members have sent each other."""
    cluster = Cluster(3)
    seen: dict[int, list[Frame]] = {}
    carry = cluster.carry

    def note(sender: str, to: str, kind: int, data: bytes) -> None:
        seen.setdefault(kind, []).append(Frame(sender, kind, data))
        carry(sender, to, kind, data)

    cluster.carry = note  # type: ignore[method-assign]
    cluster.ready()
    cluster.run(2_000)
    return cluster, [each for frames in seen.values() for each in frames[:3]]


@given(st.binary(max_size=300).filter(lambda data: len(data) != MARK_BYTES), st.integers(0, 1 << 32))
def test_bytes_of_any_kind_of_frame_are_ignored_and_the_member_goes_on(
    carried: tuple[Cluster, list[Frame]], data: bytes, seed: int
) -> None:
    """Also the beginnings of real frames. What a whole frame says is believed: members trust each other."""
    cluster, frames = carried
    chance, member = random.Random(seed), cluster.members["n1"]
    kinds = sorted(member._frames.since)
    given_frames = [Frame("n2", kind, data) for kind in kinds]
    given_frames += [
        Frame(each.peer, each.kind, bytes(each.data)[: chance.randrange(len(each.data) or 1)])
        for each in frames
        if each.peer != "n1"
    ]
    with structlog.testing.capture_logs():
        member.step(cluster.clock_ms("n1"), given_frames, [])
    assert member._frames.malformed > 0
    cluster.run(100)
    assert cluster.leader(0) is not None
