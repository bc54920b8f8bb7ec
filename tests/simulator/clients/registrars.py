"""Several administrators declare, delete and look at the same few queues, at any member, and write down what they were
told: the history that rules/linearizable.py judges."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import grpc

from quorum.client.client import Client
from quorum.v1 import admin_pb2, admin_pb2_grpc
from simulator.clients.apps import App, excuse
from simulator.rules.linearizable import Operation, is_linearizable

if TYPE_CHECKING:
    from simulator.world import World

NAMES = ("one", "two", "three")
TIMEOUT_S = 3.0
PAUSES_S = (0.01, 0.1, 0.4)

NOWHERE, UNKNOWN = -1, 0
"""States of a name beside the id of its queue: there is none, and there is one whose id nobody has seen."""
NOT_FOUND = "not found"


class Registrar(App):
    """One of them. histories: name -> what all of them have done, in the order of the calls."""

    def __init__(self, world: World, number: int, histories: dict[str, list[Operation]]) -> None:
        self.number = number
        self.histories = histories
        super().__init__(world, f"registrar-{number}")

    def successor(self, name: str) -> App:
        return Registrar(self.world, self.world.next_producer(), self.histories)

    async def work(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self.chance.choice(PAUSES_S))
            name = self.chance.choice(NAMES)
            what = self.chance.choice(("declare", "delete", "look", "look"))
            operation = Operation(self.name, what, self.world.now_ms)
            self.histories.setdefault(name, []).append(operation)
            try:
                answer = await self._call(what, name)
            except grpc.aio.AioRpcError as error:
                excuse(error, grpc.StatusCode.NOT_FOUND)
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    continue
                answer = NOT_FOUND
            operation.answer, operation.end = answer, self.world.now_ms

    async def _call(self, what: str, name: str) -> Hashable:
        endpoint = f"{self.chance.choice(list(self.world.machines))}:7400"
        stub: Any = admin_pb2_grpc.AdminStub(self.channel(endpoint))
        if what == "declare":
            request = admin_pb2.DeclareQueueRequest(queue=name)
            return bool((await stub.DeclareQueue(request, timeout=TIMEOUT_S)).created)
        if what == "delete":
            await stub.DeleteQueue(admin_pb2.DeleteQueueRequest(queue=name), timeout=TIMEOUT_S)
            return True
        request = admin_pb2.DescribeQueueRequest(queue=name)
        return int((await stub.DescribeQueue(request, timeout=TIMEOUT_S)).queue.id)


def step(state: Hashable, operation: Operation) -> Hashable | None:
    """A name's state after an operation; None if the answer does not fit."""
    is_there = state != NOWHERE
    if operation.what == "declare":
        if operation.answer is None:
            return state if is_there else UNKNOWN
        return None if operation.answer == is_there else (state if is_there else UNKNOWN)
    if operation.what == "delete":
        fits = operation.answer in (None, True if is_there else NOT_FOUND)
        return NOWHERE if fits else None
    if operation.answer is None:
        return state
    if operation.answer == NOT_FOUND:
        return None if is_there else state
    return operation.answer if is_there and state in (UNKNOWN, operation.answer) else None


def not_linearizable(histories: dict[str, list[Operation]]) -> list[str]:
    """The names whose history no order explains."""
    return [name for name, each in histories.items() if not is_linearizable(each, NOWHERE, step)]
