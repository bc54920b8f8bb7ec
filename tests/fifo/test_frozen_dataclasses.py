"""The decorator of frozen classes with slots behaves as that of the standard library (fifo)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from fifo import frozen_dataclasses

_T = TypeVar("_T")


def classes(dataclass: Callable[..., Any]) -> dict[str, Any]:
    """The same classes, made by this decorator."""

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @dataclass(frozen=True, slots=True)
    class One:
        value: float

    @dataclass(frozen=True, slots=True)
    class Place:
        """A docstring."""

        group: int
        queue: bytes
        start: int = 0
        names: tuple[str, ...] = ("a", "b")
        KIND: ClassVar[int] = 3

        @property
        def end(self) -> int:
            return self.start + 1

    @dataclass(frozen=True, slots=True)
    class Named(Place):
        name: str = "x"
        start: int = 7  # another default than the base's

    @dataclass(frozen=True, slots=True)
    class Typed(Generic[_T]):
        content: _T

    @dataclass(frozen=True, slots=True)
    class Checked:
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    @dataclass(frozen=True, slots=True)
    class Own:
        text: str
        note: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.text == other.text

        def __hash__(self) -> int:
            return hash(self.text)

        def __repr__(self) -> str:
            return f"<{self.text}>"

    return {each.__name__: each for each in (Nothing, One, Place, Named, Typed, Checked, Own)}


OURS, STANDARD = classes(frozen_dataclasses.dataclass), classes(dataclasses.dataclass)
NAN = float("nan")
ARGUMENTS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Nothing", (), {}),
    ("One", (NAN,), {}),
    ("Place", (1, b"q"), {}),
    ("Place", (1,), {"queue": b"q", "start": 5}),
    ("Place", (1, b"q", 5, ()), {}),
    ("Named", (1, b"q"), {}),
    ("Named", (1, b"q", 2, (), "y"), {}),
    ("Typed", ([1],), {}),
    ("Checked", (1, 2), {}),
    ("Own", ("a", "b"), {}),
]
made = pytest.mark.parametrize(("name", "values", "named"), ARGUMENTS)


@made
def test_an_object_has_the_fields_text_and_hash_of_the_standard_one(
    name: str, values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    ours, standard = OURS[name](*values, **named), STANDARD[name](*values, **named)
    assert asdict(ours) == asdict(standard)
    assert repr(ours) == repr(standard)
    assert ours == OURS[name](*values, **named) and ours != standard
    assert OURS[name].__match_args__ == STANDARD[name].__match_args__
    assert OURS[name].__slots__ == STANDARD[name].__slots__ and not hasattr(ours, "__dict__")
    if name != "Typed":  # a list has no hash
        assert hash(ours) == hash(standard)


@made
def test_an_object_is_frozen_and_can_be_copied_and_replaced(
    name: str, values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    ours = OURS[name](*values, **named)
    assert frozen_dataclasses.is_frozen(OURS[name])
    assert copy.copy(ours) == ours and replace(ours) == ours
    for each in (*fields(ours), "other"):
        field_name = each if isinstance(each, str) else each.name
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{field_name}'"):
            setattr(ours, field_name, 1)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{field_name}'"):
            delattr(ours, field_name)


def test_objects_differ_by_each_field_and_by_their_class() -> None:
    place = OURS["Place"](1, b"q")
    for name, value in {"group": 2, "queue": b"", "start": 1, "names": ()}.items():
        assert replace(place, **{name: value}) != place
    assert OURS["Named"](1, b"q", 0) != place
    assert place != (1, b"q", 0, ("a", "b"))


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("Place", (1,), {}),
        ("Place", (1, 2, 3, 4, 5), {}),
        ("Place", (1, 2), {"other": 3}),
        ("Nothing", (1,), {}),
    ],
)
def test_wrong_arguments_have_the_error_of_the_standard_library(
    name: str, values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError) as ours:
        OURS[name](*values, **named)
    with pytest.raises(TypeError) as standard:
        STANDARD[name](*values, **named)
    assert str(ours.value) == str(standard.value)


def test_a_check_after_the_fields_are_set_is_called() -> None:
    with pytest.raises(ValueError, match="low is above high"):
        OURS["Checked"](2, 1)


def test_properties_class_variables_and_patterns_work() -> None:
    place = OURS["Place"](1, b"q", 4)
    assert (place.end, place.KIND) == (5, 3)
    Place = OURS["Place"]
    match place:
        case Place(group, queue, start=4):
            assert (group, queue) == (1, b"q")
        case _:
            raise AssertionError(place)


def test_the_standard_library_makes_all_other_classes() -> None:
    dataclass = frozen_dataclasses.dataclass

    @dataclass(slots=True)
    class Open:
        value: int = 1

    @dataclass(frozen=True, slots=True, order=True)
    class Sorted:
        value: int

    @dataclass(frozen=True, slots=True)
    class Filled:
        values: list[int] = field(default_factory=list)
        secret: str = field(default="s", repr=False, compare=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class NamedOnly:
        value: int

    @dataclass(frozen=True, slots=True, eq=False)
    class Itself:
        value: int

    opened = Open()
    opened.value = 2
    assert opened == Open(2) and not frozen_dataclasses.is_frozen(Open)
    assert Sorted(1) < Sorted(2)
    assert Filled().values is not Filled().values and "secret" not in repr(Filled())
    assert Filled(secret="a") == Filled(secret="b")
    with pytest.raises(TypeError):
        NamedOnly(1)  # type: ignore[misc]
    assert Itself(1) != Itself(1)
    assert all(frozen_dataclasses.is_frozen(each) for each in (Sorted, Filled, NamedOnly, Itself))


def test_a_class_of_the_one_kind_does_not_inherit_from_the_other() -> None:
    with pytest.raises(TypeError, match="frozen"):
        frozen_dataclasses.dataclass(frozen=True, slots=True)(type("Child", (STANDARD["Place"],), {}))
    with pytest.raises(TypeError, match="frozen"):
        dataclasses.dataclass(frozen=True, slots=True)(type("Child", (OURS["Place"],), {}))
