"""Properties that all messages of a batch share are read once, however many messages there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fifo.effects import Run
from quorum.api.bulk import service as bulk_service
from quorum.api.services import queue_service
from quorum.node.wire.batches import StoredBatch
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import jms
from support.members.cluster import batch

COUNT = 500
SHARED = pb.Properties(application_properties={"colour": pb.Value(text="red")})


def stored(properties: list[pb.Properties] | None) -> StoredBatch:
    made = pb.MessageBatch.FromString(batch([b"%d" % n for n in range(COUNT)]))
    if properties is None:
        made.shared_properties.CopyFrom(SHARED)
    else:
        made.properties.extend(properties)
    return StoredBatch(made.SerializeToString())


class Reader:
    def __init__(self, found: StoredBatch) -> None:
        self.found = found

    def parts(self, group: int, run: Run) -> Iterator[tuple[StoredBatch, int, int]]:
        yield self.found, run.ordinal, run.count


def browsed(found: StoredBatch, is_wanted: Any) -> list[int]:
    runs = (Run(1, COUNT, 1, 0, 0),)
    return [
        message.sequence
        for message, _ in queue_service._stored(Reader(found), 1, runs, is_wanted)  # type: ignore[arg-type,misc]
    ]


def test_a_browse_looks_at_shared_properties_once() -> None:
    seen = []

    def is_wanted(properties: pb.Properties | None) -> bool:
        seen.append(properties)
        return True

    assert browsed(stored(None), is_wanted) == list(range(1, COUNT + 1))
    assert len(seen) == 1


@pytest.mark.parametrize(("text", "count"), [("colour = 'red'", COUNT), ("colour = 'blue'", 0)])
def test_a_browse_finds_what_matches_by_shared_properties(text: str, count: int) -> None:
    assert len(browsed(stored(None), queue_service._wanted(jms.parse(text)))) == count


def test_a_browse_finds_what_matches_by_the_messages_own_properties() -> None:
    rows = [pb.Properties(application_properties={"n": pb.Value(integer=n)}) for n in range(COUNT)]
    assert browsed(stored(rows), queue_service._wanted(jms.parse("n BETWEEN 3 AND 5"))) == [4, 5, 6]


def test_the_fields_of_shared_properties_are_counted_for_all_messages() -> None:
    kinds: dict[str, Counter[str | None]] = {}
    reads = []

    class Shared:
        @property
        def application_properties(self) -> Any:
            reads.append(1)
            return SHARED.application_properties

    part = SimpleNamespace(batch=SimpleNamespace(each=None, shared=Shared()), first=0, count=COUNT)
    bulk_service._examine(part, kinds)  # type: ignore[arg-type]
    assert kinds == {"colour": Counter(text=COUNT)}
    assert len(reads) == 1
