"""The parts of the catalog as JSON values, for its snapshot. version: the system group's; layouts.py says which fields
records have."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from fifo.layouts import FENCE
from quorum.catalog.arguments import effective_config, with_defaults
from quorum.catalog.exchanges import Exchanges
from quorum.catalog.layouts import BINDING, EXCHANGE, MEMBER, QUEUE, SPEAKER
from quorum.catalog.members import CatalogMember, Members
from quorum.catalog.numbering import Numbering
from quorum.catalog.queues import CatalogQueue


def restored_queue(row: object) -> CatalogQueue:
    found = QUEUE.row_fields(row)
    arguments = with_defaults(found["arguments"], found["version"])
    return CatalogQueue(**found, config=effective_config(found["name"], dict(arguments)))


def exchanges_state(exchanges: Exchanges, version: int) -> dict[str, Any]:
    """Those that are always there are left out."""
    declared = [each for each in exchanges.by_name.values() if each.id]
    return {
        "bindings": [BINDING.row(each, version) for each in exchanges.bindings.values()],
        "exchanges": [
            exchanges.next_id,
            exchanges.removals,
            [EXCHANGE.row(each, version) for each in sorted(declared, key=attrgetter("id"))],
        ],
    }


def restored_exchanges(state: dict[str, Any]) -> Exchanges:
    """None are there if an earlier build has written the snapshot."""
    exchanges = Exchanges()
    next_id, removals, found = state.get("exchanges", (1, 0, ()))
    if not isinstance(next_id, int) or not isinstance(removals, int):
        raise ValueError("a catalog without the numbers of its exchanges")
    exchanges.next_id, exchanges.removals = next_id, removals
    for row in found:
        exchanges.add_exchange(EXCHANGE.from_row(row))
    for row in state.get("bindings", ()):
        exchanges.add_binding(BINDING.from_row(row))
    return exchanges


def members_state(members: Members, version: int) -> list[object]:
    return [members.next_number, [_member(each, version) for each in members.by_id.values()], members.removed]


def _member(member: CatalogMember, version: int) -> dict[str, Any]:
    """The fields of joining members are present only for those."""
    found = MEMBER.by_name(member, version)
    if not member.is_joining:
        del found["is_joining"], found["replaces"]
    return found


def restored_members(state: Sequence[Any]) -> Members:
    members = Members()
    number, found, removed = state
    if not isinstance(number, int) or not isinstance(found, list) or not isinstance(removed, list):
        raise ValueError("a catalog without members")
    members.next_number = number
    members.by_id = {each.id: each for each in map(MEMBER.from_object, found)}
    members.removed = [str(each) for each in removed]
    return members


def numbering_state(numbering: Numbering, version: int) -> dict[str, Any]:
    return {
        "fences": [
            [name.hex(), *FENCE.row(fence, version)] for name, fence in numbering.fences.by_name.items()
        ],
        "fences_lost_ms": numbering.fences.lost_ms,
        "speakers": [
            [name.hex(), *SPEAKER.row(speaker, version)] for name, speaker in numbering.speakers.items()
        ],
    }


def restored_numbering(state: dict[str, Any]) -> Numbering:
    numbering = Numbering()
    numbering.speakers = {bytes.fromhex(name): SPEAKER.from_row(row) for name, *row in state["speakers"]}
    numbering.fences.by_name = {
        bytes.fromhex(name): FENCE.from_row(row) for name, *row in state.get("fences", ())
    }
    numbering.fences.lost_ms = state.get("fences_lost_ms", -1)
    return numbering
