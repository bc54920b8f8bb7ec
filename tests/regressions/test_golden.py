"""What released versions have written is read, replayed and served by this one (support/versions/golden.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fifo import commands as c
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.queries import group as queries
from fifo.versions import CURRENT
from quorum.catalog.machine import CatalogMachine
from quorum.node.replica.replica import state_of
from quorum.node.wire import operations
from quorum.node.wire.operations import Command
from support.members.cluster import Cluster, Session
from support.versions.golden import MEMBERS, Golden

ARCHIVES = sorted((Path(__file__).parents[1] / "golden").glob("*.tar.xz"))

LATER_KINDS: dict[int, set[str]] = {
    1: {
        *("ConfirmMember", "FoundLeaseTimes", "SetLeaseTimes", "SettleLeaseTimes"),
        *("RemoveExpired", "UseQueue"),
        *("Commit", "Rollback"),
        *("Prepare", "Decide", "Finish", "Resolve", "Finished"),
        *("ClaimDead", "SettleDead"),
        *("DeclareExchange", "DeleteExchange", "Bind", "Unbind"),
        *("SetUser", "SetPermissions", "RemoveUser"),
    },
    2: set(),
}
"""machine version -> the kinds of commands that came with the next one"""
RENAMED_KINDS = {
    "DeleteReader": "DeleteSubscription",
    "FoundCluster": "BootstrapCluster",
    "KeepReader": "KeepSubscription",
    "MeetMember": "RecordIncarnation",
    "OpenReader": "OpenSubscription",
    "ReleaseReader": "ReleaseSubscription",
}
"""A kind's name in an archive -> its name now."""


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_there_is_an_archive_of_each_released_machine_version() -> None:
    assert [path.name for path in ARCHIVES] == ["machine-1.tar.xz", "machine-2.tar.xz"]


def test_an_archive_has_every_kind_of_command_of_its_version(golden: Golden) -> None:
    kinds = {kind.__name__ for _, kind, _, _ in operations._TABLE}
    archived = {RENAMED_KINDS.get(kind, kind) for kind in golden.about["kinds"]}
    version = golden.about["machine_version"]
    later = set().union(*(names for earlier, names in LATER_KINDS.items() if earlier >= version))
    assert archived == kinds - later


def test_every_entry_is_applied_as_it_was(golden: Golden) -> None:
    count = 0
    for group in golden.groups:
        replay = golden.replay(group)
        for entry in golden.entries(group):
            replay.apply(entry.index, entry.term, entry.body)
            assert replay.running_hash == entry.running_hash, f"group {group}, entry {entry.index}"
            count += 1
    assert count > 100


def test_a_snapshot_is_the_state_that_its_entries_lead_to(golden: Golden) -> None:
    for group in golden.groups:
        replay = golden.replay(group)
        for entry in golden.entries(group):
            replay.apply(entry.index, entry.term, entry.body)
        data = golden.files[f"groups/{group}/snapshot"]
        if group:
            restored = snapshot.decode(data, replay.bodies)
            invariants.check(restored)
            assert snapshot.encode(restored) == state_of(replay.machine)
        else:
            assert CatalogMachine.restore(data).snapshot() == state_of(replay.machine)


def test_a_checkpoint_and_its_pages_are_the_state_that_its_entries_lead_to(golden: Golden) -> None:
    for group in golden.groups:
        if not group:
            continue
        replay = golden.replay(group)
        for entry in golden.entries(group):
            replay.apply(entry.index, entry.term, entry.body)
        data = golden.files[f"groups/{group}/checkpoint"]
        pages = golden.pages(group)
        resumed = checkpoint.resume(data, replay.bodies, pages)
        assert snapshot.encode(resumed) == state_of(replay.machine)
        entries, named = checkpoint.contents(data)
        assert set(named) <= set(pages.pages)
        assert set(entries) <= set(replay.bodies.by_index)
        resumed.apply(
            c.Meta(replay.machine.index + 1, 99, replay.machine.now_ms + 1, golden.about["machine_version"]),
            [c.Operation(0, None, c.Wake())],
        )


def test_a_group_goes_on_from_an_old_state_by_the_present_version(golden: Golden) -> None:
    for group in golden.groups:
        entries = golden.entries(group)
        replay = golden.replay(group)
        for entry in entries:
            replay.apply(entry.index, entry.term, entry.body)
        body = b"".join(
            operations.command_parts(
                [operations.encode(c.Wake(), None)], Command(entries[-1].body).now_ms + 1, CURRENT
            )
        )
        replay.apply(entries[-1].index + 1, 99, body)


def test_the_members_start_on_their_old_files_and_serve_every_message(golden: Golden) -> None:
    cluster = Cluster(len(MEMBERS), log={"segment_bytes": 48 << 10}, snapshot_ms=1_000, is_started=False)
    for name in MEMBERS:
        cluster.disks[name] = golden.disk(name)
        cluster.node_states[name] = golden.node_state(name)
        cluster.start(name)
    cluster.ready()
    for name, queue in golden.about["queues"].items():
        found = {
            queries.info(m.queue_machine(queue["group"]), queue["id"]).total for m in cluster.members.values()
        }  # type: ignore[union-attr]
        assert found == {queue["total"]}, name
    group, queue = golden.about["queues"]["long"]["group"], golden.about["queues"]["long"]["id"]
    reader = Session(cluster, "n2", b"new reader".ljust(16))
    received: list[bytes] = []
    reader.call(group, c.Attach(queue, "all", b"", 20_000))
    cluster.until(lambda: sum(run.count for d in reader.deliveries for run in d.runs) >= 17_600, "deliveries")
    received = reader.received(group)
    assert set(received) <= {b"%05d" % number for number in range(1, 18_001)}
    assert len(received) == len(set(received)) == golden.about["queues"]["long"]["ready"]
    writer = Session(cluster, "n1", b"new writer".ljust(16))
    writer.publish(group, queue, b"new")
    cluster.until(lambda: writer.confirmed() == [1], "a new message is confirmed")
