"""What is done to clusters of real processes: by the tests a few times, by the campaign many times.

Each scenario runs its load, causes its fault, lets the load go on, checks everything that clients saw, and
answers a line for people. Deadlines are generous and named; how long things took is printed, not asserted.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

import quorum
from quorum.client import Delivery, encode_batch
from quorum.histories import MemoryRecorder, Run, now_us
from quorum.histories.records import OK
from quorum.histories.report import totals
from quorum.local_cluster.cluster import LocalCluster
from quorum.v1 import admin_pb2, admin_pb2_grpc, queue_pb2
from support.histories import checkers
from support.processes.cluster import all_equal
from support.processes.load import (
    CONNECT_LIMIT_MS,
    LIGHT,
    POLL_S,
    Load,
    Recorder,
    Sent,
    attachment,
    body,
    delivery_of,
    describe_times,
    leader_of,
    record_delivery,
    record_publish,
    settled,
)
from support.processes.raw_client import RawSession

RESTART_LIMIT_S = 120.0
LEASE_LIMIT_S = 60.0
"""A paused node's messages must be with somebody else by then (the lease is a few seconds)."""
STREAM_END_LIMIT_S = 60.0
READ_LIMIT_S = 30.0
ASK_S = 0.2


async def kill_leader(cluster: LocalCluster, queue: str, rounds: int, load: Load = LIGHT) -> str:
    """The leader of the queue's group is killed under load, again and again, and started again."""
    times: list[float] = []
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for _ in range(rounds):
            leader = await leader_of(cluster, queue)
            fault_at = time.monotonic()
            cluster.kill(leader)
            times.append(await recorder.resumed(fault_at))
            await recorder.progress()
            await asyncio.to_thread(cluster.restart, leader, RESTART_LIMIT_S)
            await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    equal = await all_equal(cluster)
    return (
        f"leader killed {rounds} times, publishing went on after {describe_times(times)}; {verdict}; {equal}"
    )


async def kill_all(
    cluster: LocalCluster, queue: str, rounds: int, load: Load = LIGHT, record: Path | None = None
) -> str:
    """Every member is killed at once under load, and started again. record: as Recorder."""
    times: list[float] = []
    async with Recorder(cluster, queue, load=load, record=record) as recorder:
        await recorder.progress()
        for _ in range(rounds):
            for name in cluster.names:
                cluster.kill(name)
            fault_at = time.monotonic()
            cluster.start()
            await asyncio.to_thread(cluster.wait_ready, None, RESTART_LIMIT_S)
            times.append(await recorder.resumed(fault_at))
            await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    equal = await all_equal(cluster)
    return f"all killed {rounds} times, publishing went on after {describe_times(times)}; {verdict}; {equal}"


async def kill_minority(cluster: LocalCluster, queue: str, load: Load = LIGHT) -> str:
    """As many members as may fail are killed together, the leader among them, and stay away."""
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        leader = await leader_of(cluster, queue)
        others = [name for name in cluster.names if name != leader]
        fault_at = time.monotonic()
        victims = [leader, *others[: (len(cluster.names) - 1) // 2 - 1]]
        for name in victims:
            cluster.kill(name)
        took = await recorder.resumed(fault_at)
        await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return f"{len(victims)} of {len(cluster.names)} killed, publishing went on after {took:.2f} s; {verdict}"


class PausedNode:
    """A consumer's node is stopped past its lease and goes on later, with more for that consumer in the log.

    The consumer on it is a hand-made session without keepalive: it would take whatever the node still sent. With
    pauses_leader the node is the one that led the group: while it sleeps it is also sent a publish, and asked what is
    in the queue; waking up, it must not answer from what it believed.
    """

    WAITING = 50
    MORE = 20
    CREDIT = 60

    def __init__(self, cluster: LocalCluster, queue: str, *, pauses_leader: bool = False) -> None:
        self.cluster = cluster
        self.queue = queue
        self.pauses_leader = pauses_leader
        self.history = MemoryRecorder()
        self.settled = 0
        """messages whose settlement was acknowledged"""
        self.settled_at = 0.0
        self.held: list[tuple[Delivery, list[Run]]] = []
        """what the patient one was handed"""
        self.attach = 0
        self.last_tag = 0
        self.hears_end = asyncio.Event()
        self.publish_confirmed = asyncio.Event()

    async def run(self) -> str:
        cluster = self.cluster
        async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare(self.queue)
        leader = await leader_of(cluster, self.queue)
        others = [name for name in cluster.names if name != leader]
        paused, elsewhere = (leader, others[0]) if self.pauses_leader else (others[0], others[1])
        async with (
            quorum.connect(cluster.url_of(elsewhere), connect_timeout_ms=CONNECT_LIMIT_MS) as client,
            AsyncExitStack() as sessions,
        ):
            await self._publish(client, 0, self.WAITING)
            patient, reading = await self._begin_patient(sessions, paused)
            paused_at = time.monotonic()
            cluster.pause(paused)
            other = asyncio.create_task(self._consume_elsewhere(client))
            try:
                await self._publish(client, self.WAITING, self.MORE)
                total = self.WAITING + self.MORE
                await self._until(lambda: self.settled >= total, LEASE_LIMIT_S, "the other one's settlements")
                took = self.settled_at - paused_at
                late = Sent("patient", 0, 1, now_us())
                batch = encode_batch([body("patient", 0)]).data
                await patient.send(
                    publish=queue_pb2.PublishBatch(
                        routing_key=self.queue, first_sequence=1, lowest_unconfirmed=1, batch=batch
                    )
                )
                known = (await client.describe(self.queue)).queue
                asked = asyncio.create_task(self._describe(paused))
                await asyncio.sleep(ASK_S)  # the question is in the sleeper's socket
            finally:
                cluster.resume(paused)
            await self._settle_late(patient)
            answered = await asked
            if answered is not None:
                assert answered.next_sequence >= known.next_sequence, f"a stale read: {answered}, not {known}"
                assert answered.total <= answered.next_sequence - known.next_sequence, (
                    f"a stale read: {answered}"
                )
            await self._until(
                self.hears_end.is_set, STREAM_END_LIMIT_S, "the end of the patient one's stream"
            )
            await reading
            was_confirmed = self.publish_confirmed.is_set()
            record_publish(self.history, self.queue, late, None if was_confirmed else TimeoutError())
            total += was_confirmed
            await self._until(lambda: self.settled >= total, LEASE_LIMIT_S, "what was published late")
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
        who = "paused leader" if self.pauses_leader else "paused node"
        told = "confirmed" if was_confirmed else "not confirmed"
        read = "answered rightly" if answered is not None else "refused"
        return (
            f"all messages of a {who} settled elsewhere after {took:.2f} s; what it was sent asleep was {told}, "
            f"a read {read}; {self._verdict()}; {await all_equal(cluster)}"
        )

    async def _begin_patient(
        self, sessions: AsyncExitStack, node: str
    ) -> tuple[RawSession, asyncio.Task[None]]:
        """A session that holds all that waits. A node may end a session that comes soon after its lease had lapsed;
        then it takes another one."""
        deadline = time.monotonic() + LEASE_LIMIT_S
        while True:
            self.hears_end.clear()
            self.last_tag = 0
            patient = await sessions.enter_async_context(RawSession(self.cluster.member(node).client))
            await patient.open()
            attach = queue_pb2.Attach(
                request_id=1, consumer_tag="patient", queue=self.queue, credit_to=self.CREDIT
            )
            await patient.send(attach=attach)
            reading = asyncio.create_task(self._read(patient))
            await self._until(
                lambda: self.last_tag >= self.WAITING or self.hears_end.is_set(),
                LEASE_LIMIT_S,
                "the patient one's messages",
            )
            if not self.hears_end.is_set():
                return patient, reading
            assert time.monotonic() < deadline, f"{node} ends every session"
            await asyncio.sleep(POLL_S)

    async def _describe(self, name: str) -> admin_pb2.QueueInfo | None:
        """What this member answers, None if it refuses."""
        async with grpc.aio.insecure_channel(self.cluster.member(name).client) as channel:
            request = admin_pb2.DescribeQueueRequest(queue=self.queue)
            try:
                response = await admin_pb2_grpc.AdminStub(channel).DescribeQueue(
                    request, timeout=READ_LIMIT_S, wait_for_ready=True
                )
            except grpc.aio.AioRpcError:
                return None
            return response.queue

    def _verdict(self) -> str:
        records = self.history.records
        self.history.left(self.queue)
        confirmed = totals(checkers.judged(records).lines)["confirmed"]
        checkers.repeats_are_flagged(records)
        moved = checkers.nobody_is_handed_what_another_has(records, must_repeat=True)
        return f"{confirmed} confirmed, {moved} moved to the other consumer, none in two hands"

    async def _publish(self, client: quorum.Client, first: int, count: int) -> None:
        sent = Sent("producer", first, count, now_us())
        await client.publish_batch(self.queue, [body("producer", n) for n in range(first, first + count)])
        record_publish(self.history, self.queue, sent)

    async def _read(self, patient: RawSession) -> None:
        """Until the node ends the stream."""
        try:
            while (response := await patient.call.read()) is not grpc.aio.EOF:
                kind = response.WhichOneof("response")
                if kind == "attached":
                    self.attach = response.attached.attach
                elif kind == "delivery":
                    delivery = delivery_of(response.delivery)
                    messages = record_delivery(self.history, self.queue, "patient", delivery)
                    self.held.append((delivery, messages))
                    self.last_tag = response.delivery.first_tag + response.delivery.count - 1
                elif kind == "confirms" and response.confirms.confirmed:
                    self.publish_confirmed.set()
                elif kind == "done" and 2 in response.done.request_ids:
                    self._late_settle_was_taken()
        except grpc.aio.AioRpcError:
            pass  # how it ends is the node's choice; that it ends is waited for
        self.hears_end.set()

    async def _settle_late(self, patient: RawSession) -> None:
        """The patient one settles what it was handed, as if nothing had happened; it must not be believed."""
        disposition = queue_pb2.Disposition(
            request_id=2,
            consumer_tag="patient",
            attach=self.attach,
            tags=[queue_pb2.Range(first=1, last=self.WAITING)],
            outcome=queue_pb2.Disposition.SETTLE,
        )
        try:
            await patient.send(disposition=disposition)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self.hears_end.set()  # the stream has ended already

    def _late_settle_was_taken(self) -> None:
        for delivery, messages in self.held:
            who, now = attachment("patient", delivery), now_us()
            self.history.settle(self.queue, who, messages, invoked_us=now, returned_us=now, outcome=OK)
            self._count_settled(delivery.count)

    def _count_settled(self, count: int) -> None:
        self.settled += count
        self.settled_at = time.monotonic()

    async def _consume_elsewhere(self, client: quorum.Client) -> None:
        consumer = await client.consume(self.queue, consumer_tag="other")
        async for delivery in consumer.deliveries():
            messages = record_delivery(self.history, self.queue, "other", delivery)
            if await settled(self.history, self.queue, "other", consumer, delivery, messages):
                self._count_settled(delivery.count)

    async def _until(self, condition: object, limit_s: float, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {limit_s} s for {what}"
            await asyncio.sleep(POLL_S)
