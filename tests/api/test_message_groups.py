"""A queue with message groups as its clients see it: through the services of a member."""

from __future__ import annotations

from quorum.node.wire.batches import group_key
from quorum.v1 import queue_pb2 as pb
from support.members.services import Api, with_queue


async def publish(api: Api, *groups: str) -> None:
    """A message for each name of a group; empty: none."""
    made = [
        pb.Message(body=b"%d" % number, properties=pb.Properties(group_id=group) if group else None)
        for number, group in enumerate(groups)
    ]
    await api.publish(*made)


def test_the_names_of_groups_reach_the_queue_as_keys() -> None:
    async def run(api: Api) -> None:
        await publish(api, "x", "", "y", "x")
        await publish(api, "x")
        found = await api.info()
        machine = api.cluster.members[api.name].queue_machine(found.group)
        keys = machine.queues[found.id].messages.blocks.view(0).live_keys
        assert keys is not None
        names = [int.from_bytes(group_key(name), "little") for name in ("x", "", "y", "x", "x")]
        assert keys.tolist() == names
        assert found.held_groups == 0
        assert await api.get(10) == [b"0", b"1", b"2", b"3", b"0"]

    with_queue(run, message_groups=True)


def test_a_queue_without_message_groups_shows_none() -> None:
    async def run(api: Api) -> None:
        await publish(api, "x", "x")
        assert (await api.info()).held_groups == 0
        assert await api.get(2) == [b"0", b"1"]

    with_queue(run)
