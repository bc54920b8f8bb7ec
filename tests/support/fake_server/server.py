"""A small cluster in memory behind real gRPC servers, to test the client against.

`FakeCluster` is the state all its nodes share, as if replication took no time: queues, and what each producer
has had accepted. `FakeNode` is one gRPC server on it. The session rules of queue.proto are kept: numbers are
taken once, a higher epoch fences lower ones, credit is absolute, tags start at 1 at each attach, a lost
stream returns what its consumers hold. Selectors are known by their text only: `cluster.selectors` maps a
text to a predicate.

Faults on command: `node.cut()` breaks the streams, `node.stop()` takes the server away, `node.muted` reads
and never answers, `node.is_cut_off` refuses attaches for want of a leader, `node.has_no_majority` answers calls of
administration only about the cluster's status, `node.holds_commits` says that
no commit is finished yet, `cluster.holds_confirms` accepts publishes and keeps the answers,
`cluster.cut_after` breaks the stream right after so many publishes were accepted, unanswered;
`node.losing` carries the next delete or purge out, is called, and the answer is lost.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from operator import attrgetter
from typing import Any

import grpc
from google.rpc import code_pb2
from grpc_status import rpc_status

from quorum.v1 import admin_pb2, admin_pb2_grpc, queue_pb2, queue_pb2_grpc
from support.fake_server.cluster import FakeCluster, FakeQueue, Refusal
from support.fake_server.stream import FakeStream


class FakeNode(queue_pb2_grpc.QueueServicer, admin_pb2_grpc.AdminServicer):
    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.port = _port_of(self)
        self.muted = False
        self.is_cut_off = False
        self.has_no_majority = False
        self.unanswered_calls = 0
        self.holds_commits = False
        self.refuses_sessions: Refusal | None = None
        self.unavailable_calls = 0  # so many unary calls answer UNAVAILABLE first
        self.losing: Callable[[], None] | None = None
        self.streams: list[FakeStream] = []
        self.requests: list[str] = []
        """the kinds of all requests of sessions"""
        self.opened: list[Any] = []
        """the requests that opened sessions"""
        self.opens = asyncio.Event()
        """sessions are opened once it is set"""
        self.opens.set()
        self._server: Any = None

    async def start(self) -> FakeNode:
        self._server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 500)])
        queue_pb2_grpc.add_QueueServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def cut(self, refusal: Refusal | None = None) -> None:
        for stream in list(self.streams):
            stream.cut(refusal)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> None:
        stream = FakeStream(self)
        self.streams.append(stream)
        await self.opens.wait()
        await stream.run(requests, context)

    async def FindLeader(self, request: Any, context: Any) -> Any:
        leader = self.cluster.leaders.get(request.queue)
        if leader is None:
            return queue_pb2.FindLeaderResponse()
        return queue_pb2.FindLeaderResponse(node=leader.name, address=leader.address)

    async def Browse(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._gate(context)
        self.cluster.browses.append(request)
        queue = await self._queue(request.queue, context)
        chosen = [each for each in queue.ready.values() if each.sequence >= request.start_sequence]
        for message in chosen[: request.limit or None]:
            stored = queue_pb2.StoredMessage(sequence=message.sequence, redelivered=message.handed_out)
            stored.message.body = message.body
            stored.message.properties.CopyFrom(message.properties)
            yield queue_pb2.BrowseResponse(messages=[stored])
            await self._gate(context)

    async def DeclareQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        created = request.queue not in self.cluster.queues
        if created:
            self.cluster.declare(request.queue, **dict(request.arguments))
        return admin_pb2.DeclareQueueResponse(created=created)

    async def DeleteQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        queue = await self._queue(request.queue, context, request.id)
        del self.cluster.queues[request.queue]
        refusal = Refusal(code_pb2.NOT_FOUND, "QUEUE_DELETED", "the queue was deleted")
        for consumer in queue.consumers:
            cancelled = queue_pb2.Cancelled(consumer_tag=consumer.tag, status=refusal.status)
            consumer.stream.answer(cancelled=cancelled)
        await self._lose_answer(context)
        return admin_pb2.DeleteQueueResponse(message_count=len(queue.ready))

    async def PurgeQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        queue = await self._queue(request.queue, context, request.id)
        before = request.before_sequence or queue.next_sequence
        ready = [] if request.dead_only else queue.ready
        chosen = [sequence for sequence in ready if sequence < before]
        for sequence in chosen:
            del queue.ready[sequence]
        queue.purged += len(chosen)
        await self._lose_answer(context)
        return admin_pb2.PurgeQueueResponse(message_count=len(chosen))

    async def ListQueues(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        names = sorted(name for name in self.cluster.queues if name.startswith(request.prefix))
        left = [name for name in names if name > request.after]
        response = admin_pb2.ListQueuesResponse(
            queues=[self._info(self.cluster.queues[each]) for each in left[:1]]
        )
        if len(left) > 1:
            response.next_after = left[0]
        return response

    async def DescribeQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        queue = await self._queue(request.queue, context)
        response = admin_pb2.DescribeQueueResponse(queue=self._info(queue))
        left = [each for each in queue.consumers if each.attach > request.consumers_after]
        for consumer in left[:1]:
            response.consumers.add(consumer_tag=consumer.tag, node=self.name, checked_out=len(consumer.held))
        if len(left) > 1:
            response.next_consumers_after = left[0].attach
        return response

    async def DeclareExchange(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        created = request.exchange not in self.cluster.exchanges
        if created:
            self.cluster.exchanges[request.exchange] = admin_pb2.ExchangeInfo(
                name=request.exchange,
                type=request.type,
                arguments=request.arguments,
                id=self.cluster.new_id(),
            )
        return admin_pb2.DeclareExchangeResponse(created=created)

    async def DeleteExchange(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        known = self.cluster.exchanges.get(request.exchange)
        if known is None or known.id != request.id:
            await self._missing(f"there is no exchange {request.exchange!r}", context)
        del self.cluster.exchanges[request.exchange]
        await self._lose_answer(context)
        return admin_pb2.DeleteExchangeResponse()

    async def ListExchanges(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        names = sorted(name for name in self.cluster.exchanges if name.startswith(request.prefix))
        found = [self.cluster.exchanges[name] for name in names if name > request.after]
        response = admin_pb2.ListExchangesResponse(exchanges=found[:1])
        if len(found) > 1:
            response.next_after = found[0].name
        return response

    async def AddBinding(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if request.binding.source not in self.cluster.exchanges:
            await self._missing(f"there is no exchange {request.binding.source!r}", context)
        added = request.binding not in self.cluster.bindings
        if added:
            self.cluster.bindings.append(request.binding)
        return admin_pb2.AddBindingResponse(added=added)

    async def RemoveBinding(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if request.binding not in self.cluster.bindings:
            await self._missing("there is no such binding", context)
        self.cluster.bindings.remove(request.binding)
        await self._lose_answer(context)
        return admin_pb2.RemoveBindingResponse()

    async def ListBindings(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        response = admin_pb2.ListBindingsResponse()
        for number, each in enumerate(self.cluster.bindings, 1):
            wanted = (request.source, request.queue, request.exchange)
            found = (each.source, each.queue, each.exchange)
            if number > request.after and all(a in ("", b) for a, b in zip(wanted, found, strict=True)):
                if response.bindings:  # a page has one
                    response.next_after = number - 1
                    break
                response.bindings.append(each)
        return response

    async def ListTransactions(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        key = attrgetter("id.group", "id.producer", "id.number")
        after = (request.after.group, request.after.producer, request.after.number)
        found = [
            each
            for each in sorted(self.cluster.transactions, key=key)
            if key(each) > after and request.group in (0, each.id.group)
        ]
        return admin_pb2.ListTransactionsResponse(transactions=found[:1], has_more=len(found) > 1)

    async def ResolveTransaction(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        found = [each for each in self.cluster.transactions if each.id == request.id]
        if not found:
            await self._missing("no such part waits", context)
        self.cluster.transactions.remove(found[0])
        await self._lose_answer(context)
        is_commit = request.outcome == admin_pb2.ResolveTransactionRequest.COMMIT
        return admin_pb2.ResolveTransactionResponse(committed=is_commit, by_hand=bool(request.outcome))

    async def _missing(self, text: str, context: Any) -> None:
        refusal = Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", text)
        await context.abort_with_status(rpc_status.to_status(refusal.status))

    async def SetPolicy(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        changed = self.cluster.policies.get(request.policy.name) != request.policy
        self.cluster.policies[request.policy.name] = request.policy
        return admin_pb2.SetPolicyResponse(changed=changed)

    async def DeletePolicy(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if self.cluster.policies.pop(request.name, None) is None:
            refusal = Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", f"there is no policy {request.name!r}")
            await context.abort_with_status(rpc_status.to_status(refusal.status))
        return admin_pb2.DeletePolicyResponse()

    async def ListPolicies(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        policies = self.cluster.policies
        return admin_pb2.ListPoliciesResponse(policies=[policies[name] for name in sorted(policies)])

    async def RemoveMember(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no member {request.name!r}")

    async def ClusterStatus(self, request: Any, context: Any) -> Any:
        if not self.has_no_majority:
            await self._gate(context)
        response = admin_pb2.ClusterStatusResponse(answering_node=self.name)
        response.members.add(name=self.name, client_address=self.address, reachable=True)
        leader = "" if self.has_no_majority else self.name
        response.groups.add(group=1, leader=leader, members=[self.name])
        return response

    async def RebalanceLeaders(self, request: Any, context: Any) -> Any:
        return admin_pb2.RebalanceLeadersResponse()

    def _info(self, queue: FakeQueue) -> Any:
        held = sum(len(consumer.held) for consumer in queue.consumers)
        info = admin_pb2.QueueInfo(name=queue.name, id=queue.id, ready=len(queue.ready), checked_out=held)
        info.next_sequence = queue.next_sequence
        info.total = info.ready + held
        info.totals.published = queue.next_sequence - 1
        info.totals.purged = queue.purged
        for name, value in queue.arguments.items():
            info.arguments[name].CopyFrom(value)
            info.effective_arguments[name].CopyFrom(value)
        return info

    async def _queue(self, name: str, context: Any, number: int = 0) -> FakeQueue:
        try:
            queue = self.cluster.queue(name)
            if number not in (0, queue.id):
                text = f"there is no queue {name!r} with the id {number}"
                raise Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", text, queue=name)
            return queue
        except Refusal as refusal:
            await context.abort_with_status(rpc_status.to_status(refusal.status))
            raise AssertionError("abort raises") from None

    async def _lose_answer(self, context: Any) -> None:
        if self.losing is not None:
            happens, self.losing = self.losing, None
            happens()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on command")

    async def _gate(self, context: Any) -> None:
        if self.has_no_majority:
            self.unanswered_calls += 1
            await asyncio.Event().wait()
        if self.unavailable_calls > 0:
            self.unavailable_calls -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


def _port_of(node: FakeNode) -> int:
    """A port that nothing else gets as long as the node exists, also while it is stopped."""
    held = socket.socket()
    held.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEPORT, 1
    )  # as gRPC's; only sockets that listen get connections
    held.bind(("127.0.0.1", 0))
    weakref.finalize(node, held.close)
    port: int = held.getsockname()[1]
    return port
