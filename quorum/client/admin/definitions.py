"""The client's calls for definitions: queues, exchanges, bindings and policies of a cluster as one document."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from quorum.client.admin.calls import AdminCalls
from quorum.client.errors import ServiceError, UsageError
from quorum.client.values import MAX_TIMEOUT_MS, require_flag, require_text
from quorum.definitions import definition_files as files
from quorum.definitions import rabbitmq_definitions as rabbitmq
from quorum.definitions.definition_files import Definition
from quorum.v1 import admin_pb2

PART_DEFINITIONS, PART_BYTES, PART_ARGUMENTS = 200, 256 << 10, 2_000
"""Approximate maximum of definitions, of their bytes and of their arguments in one request of an import. The service
takes 1 MiB and 40,000 tags: a definition has about four, and each argument four more."""
OUTCOMES = ("added", "same", "differs", "refused")


class DefinitionsError(UsageError):
    """A file that cannot be read. The text names the place, as a JSON path."""


@dataclass(frozen=True, slots=True)
class DefinitionResult:
    """What an import did, or after a dry run would do, with one definition.

    kind: exchange, queue, binding or policy; vhost for all objects of a virtual host that were not read. name: of a
    binding its ends, key and arguments. outcome: of OUTCOMES; what differs stays as it is. reason: the service's word
    for a refusal; NOT_READ if the client has refused it. text: what differs, or why it is refused. notes: what it
    means otherwise here. place: its JSON path in the file.
    """

    kind: str
    name: str
    outcome: str
    reason: str = ""
    text: str = ""
    notes: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The results in the order of the import: exchanges, queues, bindings, policies. notes: what is said about the
    whole file, such as sections that are not read."""

    results: tuple[DefinitionResult, ...]
    notes: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of results by outcome."""
        found = Counter(result.outcome for result in self.results)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def is_complete(self) -> bool:
        """Whether the cluster has, or would have, everything in the file as it is there."""
        return not (self.counts["differs"] or self.counts["refused"])


def read_definitions(data: str | bytes | Mapping[str, Any], vhost: str | None = None) -> files.Contents:
    """The contents of a file in Quorum's format or in RabbitMQ's. Raises DefinitionsError."""
    try:
        return _read(data, vhost)
    except files.DefinitionsError as error:
        raise DefinitionsError(str(error)) from error


def _read(data: str | bytes | Mapping[str, Any], vhost: str | None) -> files.Contents:
    file = files.parse(data)
    if files.FORMAT_KEY not in file.value and rabbitmq.is_rabbitmq(file):
        return rabbitmq.read(file, vhost)
    if set(file.value) == {"definitions"}:
        raise DefinitionsError(
            "this is an answer of GET /api/v1/definitions, which only a POST there reads; "
            "`quorum definitions export` writes a file that both read"
        )
    if files.FORMAT_KEY not in file.value:
        raise DefinitionsError(
            f"no definitions: the key {files.FORMAT_KEY!r} is missing, and RabbitMQ's keys "
            f"({', '.join(rabbitmq.MARKS)}) are, too"
        )
    if vhost is not None:
        raise DefinitionsError("a virtual host is given; only RabbitMQ's definitions have any")
    return files.read(file)


class DefinitionCalls(AdminCalls):
    """The calls of Client for definitions."""

    async def export_definitions(self, *, timeout_ms: int | None = None) -> dict[str, Any]:
        """The queues with the arguments that they were given, exchanges, bindings and policies, as they are at one
        moment: an object for json.dumps, sorted, equal for equal definitions."""

        async def read(stub: Any, timeout_s: float, attempt: int) -> Any:
            call = stub.ExportDefinitions(admin_pb2.ExportDefinitionsRequest(), timeout=timeout_s)
            found = admin_pb2.Definitions()
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    found.MergeFrom(response.definitions)
            finally:
                call.cancel()
            return found

        found = await self._attempts("exporting definitions", timeout_ms, read)
        return await asyncio.to_thread(files.document, found)

    async def import_definitions(
        self,
        data: str | bytes | Mapping[str, Any],
        *,
        dry_run: bool = False,
        vhost: str | None = None,
        timeout_ms: int | None = None,
    ) -> ImportReport:
        """Add the definitions of a file that the cluster does not have. Nothing that exists is changed or removed.

        data: the JSON text, or its object: Quorum's own (`export_definitions`) or RabbitMQ's. dry_run: change nothing,
        and report what an import would do now. vhost: the virtual host of RabbitMQ that is read. timeout_ms: for each
        request of some hundred definitions. DefinitionsError if the file cannot be read; then nothing was sent.
        """
        require_flag("dry_run", dry_run)
        if vhost is not None:
            require_text("vhost", vhost)
        contents = await asyncio.to_thread(read_definitions, data, vhost)
        sent = [each for each in contents.definitions if not each.refusal]
        parts = list(_parts(sent))
        answers: list[Any] = []
        if dry_run:
            limit_ms = None
            if timeout_ms is not None:
                limit_ms = min(self._limit(timeout_ms) * max(1, len(parts)), MAX_TIMEOUT_MS)
            answers = await self._import(parts, limit_ms, dry_run=True)
        else:
            for part in parts:
                answers += await self._import([part], timeout_ms, dry_run=False)
        results = _results(contents.definitions, iter(answers))
        return ImportReport(results, contents.notes, dry_run)

    async def _import(
        self, parts: Sequence[Sequence[Definition]], timeout_ms: int | None, *, dry_run: bool
    ) -> list[Any]:
        """The service's results for the definitions of these parts, in one call."""

        async def bring(stub: Any, timeout_s: float, attempt: int) -> list[Any]:
            call = stub.ImportDefinitions(timeout=timeout_s)
            found: list[Any] = []
            try:
                for part in parts:
                    with contextlib.suppress(asyncio.InvalidStateError):  # the call has ended; read says why
                        await call.write(_request(part, dry_run))
                    response = await call.read()
                    results = [] if response is grpc.aio.EOF else response.results
                    if len(results) != len(part):
                        raise ServiceError(f"{len(results)} results for {len(part)} definitions")
                    found += results
            finally:
                call.cancel()
            return found

        return await self._attempts("importing definitions", timeout_ms, bring) if parts else []


def _parts(definitions: Sequence[Definition]) -> Iterator[list[Definition]]:
    """The definitions in requests. One of another kind begins a new one, because the service takes a request's
    exchanges first."""
    part: list[Definition] = []
    size = arguments = 0
    for each in definitions:
        more, more_arguments = each.wire.ByteSize(), len(each.wire.arguments)
        is_full = (
            len(part) >= PART_DEFINITIONS
            or size + more > PART_BYTES
            or arguments + more_arguments > PART_ARGUMENTS
        )
        if part and (is_full or part[-1].kind != each.kind):
            yield part
            part, size, arguments = [], 0, 0
        part.append(each)
        size, arguments = size + more, arguments + more_arguments
    if part:
        yield part


def _request(part: Sequence[Definition], dry_run: bool) -> Any:
    request = admin_pb2.ImportDefinitionsRequest(dry_run=dry_run)
    fields = {
        "exchange": request.definitions.exchanges,
        "queue": request.definitions.queues,
        "binding": request.definitions.bindings,
        "policy": request.definitions.policies,
    }
    for each in part:
        fields[each.kind].append(each.wire)
    return request


def _results(definitions: Sequence[Definition], answers: Iterator[Any]) -> tuple[DefinitionResult, ...]:
    """answers: the service's results for those that were sent."""
    found = []
    for each in definitions:
        outcome, reason, text = "refused", "NOT_READ", each.refusal
        if not each.refusal:
            wire = next(answers)
            outcome = admin_pb2.DefinitionResult.Outcome.Name(wire.outcome).lower()
            reason, text = wire.reason, wire.text
        found.append(
            DefinitionResult(each.kind, each.name, outcome, reason, text, tuple(each.notes), each.place)
        )
    return tuple(found)
