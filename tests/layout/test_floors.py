"""The rooms of a package with folders stand on floors: an import leads into the own room or to a lower floor.

`tests/layout/test_structure.py` forbids circles among the modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from layout.structure import structure_of

Floors = tuple[tuple[str, ...], ...]
"""The folders and modules of each floor, from below. A folder's name ends with a slash. Modules of one floor may import
each other, folders may not."""

API: Floors = (
    ("connections", "owners", "shares", "status", "turns"),
    ("security/",),
    ("hub/",),
    ("session/",),
    ("dead_letters/", "grpc/"),
    ("bulk/", "http/", "services/"),
    ("allocator", "health_log", "health_watch", "listening", "process", "server"),
)
CLIENT: Floors = (
    ("answers", "errors", "values"),
    ("connection/", "messages/"),
    ("session/",),
    ("admin/", "bulk/"),
    ("client",),
)
NODE: Floors = (
    ("errors", "schedule"),
    ("identity/",),
    ("leases/", "maintenance/", "wire/"),
    ("member_config", "queries"),
    ("events",),
    ("repair/", "sessions/"),
    ("replica/",),
    ("cluster/",),
    ("opening", "reads/"),
    ("driver", "member", "offline/"),
)
CLI: Floors = (
    ("console", "json_lines"),
    ("commands/",),
    ("pipelines/",),
    ("main",),
)
LOG: Floors = (
    ("errors", "files", "record", "table"),
    ("segment_files/",),
    ("snapshots/",),
    ("contents", "inspection", "journal", "reader", "recovery", "references", "store", "writer"),
    ("maintenance/",),
    ("log",),
)
SPARK: Floors = (
    (
        "errors",
        "failures",
        "java",
        "lag",
        "options",
        "rows",
        "schema",
        "selector_text",
        "service",
        "translate",
        "variant",
    ),
    ("reading/", "sink"),
    ("session", "source"),
    ("pipelines/",),
)
FLOORS = {
    "quorum/api": API,
    "quorum/log": LOG,
    "quorum/client": CLIENT,
    "quorum/node": NODE,
    "quorum/cli": CLI,
    "quorum/spark": SPARK,
}


def floor_of(floors: Floors) -> Mapping[str, int]:
    return {room: number for number, rooms in enumerate(floors) for room in rooms}


def upward(floors: Floors, arrows: Iterable[tuple[str, str]]) -> list[str]:
    """The imports that lead neither into the own room nor to a lower floor."""
    height = floor_of(floors)
    return [
        f"{low} -> {high}"
        for low, high in arrows
        if height[high] > height[low]
        or (height[high] == height[low] and (low.endswith("/") or high.endswith("/")))
    ]


@pytest.mark.parametrize("package", FLOORS)
def test_imports_lead_to_lower_floors(package: str) -> None:
    floors = FLOORS[package]
    arrows = [
        (low, high)
        for low, high in structure_of(package, folders=True).arrows
        if "__init__" not in (low, high) and low != high
    ]
    assert len(arrows) > len(floors)
    assert upward(floors, arrows) == []


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_has_a_floor(package: str) -> None:
    assert (
        structure_of(package, folders=True).floors.keys() - {"__init__"} == floor_of(FLOORS[package]).keys()
    )


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
    assert upward(API, [(low, high)]) == [f"{low} -> {high}"]
    assert upward(API, [("process", "server"), ("shares", "status"), ("server", "status")]) == []


def test_a_running_member_uses_no_tool_for_a_stopped_one() -> None:
    assert upward(NODE, [("member", "offline/")]) == ["member -> offline/"]
