"""The parts of the catalog as JSON values, for its snapshot. version: the system group's; layouts.py says which fields
records have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fifo.layouts import FENCE
from quorum.catalog.arguments import effective_config, with_defaults
from quorum.catalog.layouts import MEMBER, QUEUE, SPEAKER
from quorum.catalog.members import CatalogMember, Members
from quorum.catalog.numbering import Numbering
from quorum.catalog.queues import CatalogQueue


def restored_queue(row: object) -> CatalogQueue:
    found = QUEUE.row_fields(row)
    arguments = with_defaults(found["arguments"], found["version"])
    return CatalogQueue(**found, config=effective_config(found["name"], dict(arguments)))


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
