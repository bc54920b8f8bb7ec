"""Every part of a broken build fits the part of the product that it replaces."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

from fifo.staging import Staging
from quorum.log import Log
from quorum.log.writer import Writer
from quorum.node.member import Member
from simulator.broken import parts
from simulator.broken.canaries import CANARIES
from simulator.world import Build
from support.stand_ins import misfit, misfits


def problems(build: Build) -> list[str]:
    """What does not fit in this build."""
    found = []
    replacements = [(place, value, pkgutil.resolve_name(place)) for place, value in build.patches.items()]
    replacements += [("the log", build.log, Log), ("the member", build.member, Member)]
    for place, made, replaced in replacements:
        if not isinstance(made, type):
            what = misfit(made, replaced)
            found += [f"{place}: {made.__name__} {what}"] if what else []
        elif not issubclass(made, replaced):
            found.append(f"{place}: {made.__name__} is no {replaced.__name__}")
    return found


@pytest.mark.parametrize("build", [each.build() for each in CANARIES], ids=lambda build: build.name)
def test_every_part_of_a_broken_build_fits_what_it_replaces(build: Build) -> None:
    assert problems(build) == []


def test_every_class_that_takes_a_promise_away_replaces_methods_of_the_product() -> None:
    made = [
        each for each in vars(parts).values() if isinstance(each, type) and each.__module__ == parts.__name__
    ]
    over_the_product = [each for each in made if each.__mro__[1] is not object]
    assert len(over_the_product) > 5
    assert [what for each in over_the_product for what in misfits(each)] == []


def test_every_part_stands_in_a_build() -> None:
    used = {id(value) for canary in CANARIES for value in canary.build().patches.values()}
    functions = [
        name
        for name, value in vars(parts).items()
        if callable(value) and not isinstance(value, type) and not name.startswith("_")
        if value.__module__ == parts.__name__ and id(value) not in used
    ]
    assert functions == []


def forgets_a_parameter(staging: Staging, producer: str, batch: int) -> None: ...
def has_one_too_many(
    staging: Staging, entry: object, producer: str, batch: int, owner: int, x: int
) -> None: ...
def has_another_name(staging: Staging, entry: object, producer: str, batch: int, of: int) -> None: ...
async def waits(staging: Staging, entry: object, producer: str, batch: int, owner: int) -> None: ...
def takes_anything(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (forgets_a_parameter, "has the parameter 'producer: 'str'' where the product has 'entry: 'Entry''"),
        (has_one_too_many, "has 6 parameters, the product 5"),
        (has_another_name, "has the parameter 'of: 'int'' where the product has 'owner: 'int''"),
        (waits, "only one of them is a coroutine function"),
        (takes_anything, None),
        (parts.not_remembered, None),
    ],
)
def test_a_function_that_no_longer_fits_would_be_noticed(made: Callable[..., Any], what: str | None) -> None:
    place = "fifo.staging.Staging.published"
    assert problems(Build(patches={place: made})) == ([f"{place}: {made.__name__} {what}"] if what else [])


def test_a_class_that_no_longer_fits_would_be_noticed() -> None:
    class Other:
        def sync(self) -> int:
            return 0

    class Old(Writer):
        def sync(self, at: int) -> int:  # type: ignore[override]
            return at

        def sync_of_yesterday(self) -> int:
            return 0

    place = "quorum.log.log.Writer"
    assert problems(Build(patches={place: Other})) == [f"{place}: Other is no Writer"]
    assert problems(Build(patches={place: Old})) == []
    assert misfits(Old) == [
        "Old.sync has 2 parameters, the product 1",
        "Old.sync_of_yesterday replaces nothing",
    ]
    with pytest.raises(AttributeError):
        problems(Build(patches={"quorum.log.log.WriterOfYesterday": Other}))
