"""The rooms of quorum/api stand on floors: an import leads into the own room or to a lower floor.

`tests/layout/test_structure.py` forbids circles among the modules.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from layout.structure import structure_of

LANGUAGE = ("connections", "owners", "shares", "status", "turns")
"""The modules at the top that all others may use."""
PROCESS = ("allocator", "health_log", "health_watch", "listening", "process", "server")
"""The modules at the top that no room may use."""
FLOORS = (
    LANGUAGE,
    ("security/",),
    ("hub/",),
    ("session/",),
    ("dead_letters/", "grpc/"),
    ("bulk/", "http/", "services/"),
    PROCESS,
)
"""The folders and modules of each floor, from below. Those of one floor do not import each other, except at the top of
the package."""
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def upward(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """The imports that lead neither into the own room nor to a lower floor."""
    return [
        f"{low} -> {high}"
        for low, high in arrows
        if FLOOR_OF[high] >= FLOOR_OF[low] and not any({low, high} <= {*each} for each in (LANGUAGE, PROCESS))
    ]


def test_imports_lead_to_lower_floors() -> None:
    arrows = structure_of("quorum/api", folders=True).arrows
    assert len(arrows) > len(FLOOR_OF)
    assert upward(arrows) == []


def test_every_room_has_a_floor() -> None:
    assert structure_of("quorum/api", folders=True).floors.keys() - {"__init__"} == FLOOR_OF.keys()


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("status", "hub/"),
        ("security/", "hub/"),
        ("hub/", "session/"),
        ("hub/", "process"),
        ("session/", "grpc/"),
        ("grpc/", "services/"),
        ("grpc/", "dead_letters/"),
        ("services/", "bulk/"),
        ("http/", "services/"),
        ("services/", "server"),
    ],
)
def test_an_import_upwards_or_to_a_neighbour_would_be_noticed(low: str, high: str) -> None:
    assert upward([(low, high)]) == [f"{low} -> {high}"]
    assert upward([("process", "server"), ("shares", "status"), ("server", "status")]) == []
