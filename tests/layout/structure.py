"""Draws the structure of packages: modules on floors, and the imports between them as arrows.

    PYTHONPATH=tests python -m layout.structure                        every package
    PYTHONPATH=tests python -m layout.structure fifo quorum/node       these, with their circles and upward arrows
    PYTHONPATH=tests python -m layout.structure --folders fifo         subfolders as one room each

An arrow leads from a module to another module of the same package that it imports, at the top level, inside a function
or under `if TYPE_CHECKING`. A circle is a set of modules of which each reaches every other one along the arrows. The
deferred arrows of a circle (inside a function, for types) are left out when floors are drawn: a module without any
other arrow is on floor 1, every other module is one floor above the highest module that it imports. An arrow that does
not lead to a lower floor is an upward arrow, so a package without circles has none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from support.imports import INSTRUMENTS, ROOTS, Import, imports_of, modules

PACKAGES = (
    "fifo",
    "quorum_selectors",
    "quorum/catalog",
    "quorum/log",
    "quorum/replication",
    "quorum/node",
    "quorum/api",
    "quorum/definitions",
    "quorum/client",
    "quorum/histories",
    "quorum/spark",
    "quorum/local_cluster",
    "quorum/cli",
    "quorum/bench",
    "quorum/demo",
)


@dataclass(frozen=True, slots=True)
class Structure:
    """floors: room -> its floor, from 1. arrows: (from, to), in order. circles: the rooms of each, in order."""

    floors: Mapping[str, int]
    arrows: tuple[tuple[str, str], ...]
    circles: tuple[tuple[str, ...], ...]

    @property
    def upward(self) -> list[tuple[str, str]]:
        return [(low, high) for low, high in self.arrows if self.floors[high] >= self.floors[low]]


def draw(rooms: Iterable[str], arrows: Mapping[tuple[str, str], bool]) -> Structure:
    """The structure of `rooms`. arrows: (from, to) -> whether the import is deferred."""
    everything = {room: [high for low, high in arrows if low == room] for room in rooms}
    circles = circles_of(everything)
    circle_of = {room: circle for circle in circles for room in circle}
    standing = {
        room: [each for each in below if not (arrows[room, each] and each in circle_of.get(room, ()))]
        for room, below in everything.items()
    }
    # an import cycle that is none of deferred imports only: its rooms share a floor
    floor_mates = {room: circle for circle in circles_of(standing) for room in circle}
    floors: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in floors:
            mates = floor_mates.get(room, (room,))
            below = {each for mate in mates for each in standing[mate]} - set(mates)
            found = 1 + max(map(floor, sorted(below)), default=0)
            floors.update(dict.fromkeys(mates, found))
        return floors[room]

    for room in everything:
        floor(room)
    return Structure(floors, tuple(sorted(arrows)), tuple(circles))


def circles_of(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """The strongly connected components of at least two rooms, sorted."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        todo = list(graph[start])
        while todo:
            room = todo.pop()
            if room not in found:
                found.add(room)
                todo.extend(graph[room])
        return found

    reach = {room: reached(room) for room in graph}
    return sorted(
        {
            tuple(sorted({room, *mates}))
            for room in graph
            if (mates := {each for each in reach[room] - {room} if room in reach[each]})
        }
    )


def structure_of(package: str, *, folders: bool = False, types: bool = True) -> Structure:
    """The structure of one of PACKAGES, or of one of INSTRUMENTS.

    folders: a subfolder is one room, named `folder/`. types: with imports under `if TYPE_CHECKING`.
    """
    prefix = package.replace("/", ".")
    inside = {name: imports for name, imports in _everything().items() if _is_in(name, prefix)}

    def room(module: str) -> str:
        rest = module[len(prefix) + 1 :]
        head, _, tail = rest.partition(".")
        is_folder = bool(tail) or any(name.startswith(f"{module}.") for name in inside)
        return f"{head}/" if folders and rest and is_folder else rest or "__init__"

    arrows: dict[tuple[str, str], bool] = {}
    for name, imports in inside.items():
        for each in imports:
            if each.typing_only and not types:
                continue
            if each.module in inside and (arrow := (room(name), room(each.module)))[0] != arrow[1]:
                arrows[arrow] = arrows.get(arrow, True) and (each.typing_only or each.in_function)
    return draw(sorted({room(name) for name in inside}), arrows)


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@cache
def _everything() -> dict[str, list[Import]]:
    return {name: imports_of(file) for name, file in modules(ROOTS | INSTRUMENTS)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The structure of packages: modules, floors, arrows, circles."
    )
    known = (*PACKAGES, *INSTRUMENTS)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(known)}")
    parser.add_argument("--folders", action="store_true", help="a subfolder is one room")
    options = parser.parse_args()
    if unknown := set(options.packages) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    print(f"{'package':<20}{'rooms':>8}{'floors':>8}{'arrows':>8}{'upward':>8}{'circles':>9}")
    for package in options.packages or PACKAGES:
        found = structure_of(package, folders=options.folders)
        numbers = (len(found.floors), max(found.floors.values()), len(found.arrows), len(found.upward))
        print(f"{package:<20}" + "".join(f"{each:>8}" for each in numbers) + f"{len(found.circles):>9}")
        if options.packages:
            for circle in found.circles:
                print(f"  circle of {len(circle)}: {', '.join(circle)}")
            for low, high in found.upward:
                print(f"  upward: {low} -> {high}")


if __name__ == "__main__":
    main()
