"""The client's calls for the transactions of all clients."""

from __future__ import annotations

import pytest

import quorum
from quorum.client.admin.records import ResolvedTransaction, TransactionInfo
from quorum.client.errors import NotFound, UsageError
from quorum.v1 import admin_pb2 as pb
from support.fake_server.harness import World, on_cluster

PRODUCER = b"p" * 16


def prepared(world: World, *numbers: int) -> None:
    for number in numbers:
        world.cluster.transactions.append(
            pb.TransactionInfo(
                id=pb.TransactionId(group=2, producer=PRODUCER, number=number),
                state=pb.TransactionInfo.PREPARED,
                since_ms=1_000,
                deciding_group=1,
                queues=["orders"],
                messages=3,
                bytes=70,
            )
        )


@on_cluster()
async def test_transactions_are_listed_over_all_answers(world: World) -> None:
    prepared(world, 3, 1, 2)
    async with quorum.connect(world.url) as client:
        found = await client.transactions()
        assert [each.number for each in found] == [1, 2, 3]
        assert found[0] == TransactionInfo(2, PRODUCER, 1, "prepared", 1_000, 1, (), ("orders",), 3, 70)
        assert await client.transactions(1) == []
        with pytest.raises(UsageError, match=r"group -1; allowed: a whole number from 0 to 4294967295"):
            await client.transactions(-1)


@on_cluster()
async def test_a_prepared_transaction_is_resolved(world: World) -> None:
    prepared(world, 1, 2, 3)
    async with quorum.connect(world.url) as client:
        assert await client.resolve_transaction(2, PRODUCER, 1, "commit") == ResolvedTransaction(True, True)
        assert await client.resolve_transaction(2, PRODUCER, 2) == ResolvedTransaction(False, False)
        with pytest.raises(NotFound, match="resolving a transaction"):
            await client.resolve_transaction(2, PRODUCER, 1)
        with pytest.raises(UsageError, match="outcome 'abort'; allowed: commit, rollback, or none"):
            await client.resolve_transaction(2, PRODUCER, 3, "abort")
        with pytest.raises(UsageError, match=r"transaction -1; allowed: a whole number from 0 to"):
            await client.resolve_transaction(2, PRODUCER, -1)
        assert [each.number for each in await client.transactions(2)] == [3]
