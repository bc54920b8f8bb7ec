"""The inside of a package: imports between its modules make no circle (layout/structure.py draws them)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from layout.structure import PACKAGES, Structure, draw, structure_of
from support.imports import imports_of, modules

CIRCLES: dict[str, list[str]] = {}
"""The circles that still exist, by package. This list only shrinks: a circle that is gone is taken off it."""


def problems(found: dict[str, Structure], allowed: dict[str, list[str]]) -> list[str]:
    """What differs between the circles of these packages and the allowed ones."""
    result = []
    for package, structure in found.items():
        circles = {" ".join(circle) for circle in structure.circles}
        listed = set(allowed.get(package, ()))
        result += [f"{package}: a new circle: {each}" for each in sorted(circles - listed)]
        result += [f"{package}: take off the list: {each}" for each in sorted(listed - circles)]
    return result


def test_no_package_has_a_circle_that_is_not_listed() -> None:
    assert problems({package: structure_of(package) for package in PACKAGES}, CIRCLES) == []


def test_the_folders_of_a_package_make_no_circle() -> None:
    assert problems({package: structure_of(package, folders=True) for package in foldered()}, {}) == []


def test_the_simulator_has_no_circle_but_for_types() -> None:
    """Its parts name the world that they are in, for type checks only."""
    for folders in (False, True):
        found = structure_of("simulator", folders=folders, types=False)
        assert problems({"simulator": found}, {}) == []
        assert len(found.arrows) > len(found.floors)


def foldered() -> list[str]:
    """The packages that have subfolders."""
    return [
        package
        for package in PACKAGES
        if any(room.endswith("/") for room in structure_of(package, folders=True).floors)
    ]


def test_every_package_is_drawn() -> None:
    inside = {name for name, _ in modules() if "." in name}
    drawn = tuple(package.replace("/", ".") + "." for package in PACKAGES)
    fronts = {
        "quorum.errors",
        "quorum.config",
        "quorum.addresses",
        "quorum.columns",
        "quorum.counts",
        "quorum.round_robin",
        "quorum.pytest_plugin",
        "quorum.redrive",
        "quorum.sync",
        "quorum.bulk",
        "quorum.__main__",
    }
    assert {name for name in inside if not f"{name}.".startswith(drawn)} == fronts


def graph(text: str) -> Structure:
    """From `a -> b, c -> d` one arrow each; `=>` is a deferred import."""
    arrows = {}
    for arrow in text.split(", "):
        low, kind, high = arrow.split()
        arrows[low, high] = kind == "=>"
    return draw(sorted({room for arrow in arrows for room in arrow}), arrows)


@pytest.mark.parametrize(
    ("text", "circles"),
    [
        ("a -> b, b => a", ["a b"]),
        ("a => b, b => a", ["a b"]),
        ("a -> b, b -> a", ["a b"]),
        ("a -> b, b -> c, c => a, c -> d", ["a b c"]),
        ("a -> b, b => a, b -> c, c -> d, d => c", ["a b", "c d"]),
        ("a -> b, a -> c, b -> d, c -> d, d => e", []),
    ],
)
def test_the_rule_would_notice_a_circle(text: str, circles: list[str]) -> None:
    found = graph(text)
    assert [" ".join(circle) for circle in found.circles] == circles
    assert bool(found.upward) is bool(circles)
    assert problems({"p": found}, {}) == [f"p: a new circle: {circle}" for circle in circles]
    assert problems({"p": found}, {"p": circles}) == []


def test_the_rule_would_notice_a_circle_that_is_gone_or_has_changed() -> None:
    assert problems({"p": graph("a -> b")}, {"p": ["a b"]}) == ["p: take off the list: a b"]
    grown = problems({"p": graph("a -> b, b -> c, c => a")}, {"p": ["a b"]})
    assert grown == ["p: a new circle: a b c", "p: take off the list: a b"]


def test_floors_are_drawn_without_the_deferred_arrows_of_a_circle() -> None:
    found = graph("a -> b, b -> c, c => a, d => a")
    assert found.floors == {"c": 1, "b": 2, "a": 3, "d": 4}
    assert found.upward == [("c", "a")]


def test_imports_for_types_and_inside_functions_are_arrows(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        textwrap.dedent(
            """
            from typing import TYPE_CHECKING
            import fifo.queue_machine
            if TYPE_CHECKING:
                from fifo import group_machine
            class C:
                async def f(self):
                    def g():
                        from fifo.messages.blocks import Block
            """
        )
    )
    found = {each.module: (each.typing_only, each.in_function) for each in imports_of(file)}
    del found["typing"]
    assert found == {
        "fifo.queue_machine": (False, False),
        "fifo.group_machine": (True, False),
        "fifo.messages.blocks": (False, True),
    }
