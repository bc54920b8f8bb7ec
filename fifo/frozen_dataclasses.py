"""`dataclass`, as the standard library has it, but a frozen class with slots is made in a sixth of the time.

A member has some 280 such classes. The standard library compiles six functions for each of them, which was an eighth of
the CPU time of its imports. Here only `__init__` is compiled. The other functions are the same code for all classes.
`fields`, `replace`, `asdict`, `match` and `copy` work as usual.

A class is made here if it asks for `frozen=True, slots=True` and nothing else, and each of its fields has a type and at
most a default. The standard library makes every other class. A class of one kind cannot inherit from a class of the
other kind: the standard library refuses it, because `__dataclass_params__` of a class that is made here says that it is
not frozen. `is_frozen` knows both kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from types import CodeType
from typing import Any, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    kw_only: bool = False,
) -> Callable[[type[_T]], type[_T]]:
    """The class decorator. Its arguments are those of `dataclasses.dataclass`."""

    def make(cls: type[_T]) -> type[_T]:
        plain = eq and not order and not kw_only
        if (
            frozen
            and slots
            and plain
            and not any(isinstance(each, dataclasses.Field) for each in vars(cls).values())
        ):
            return _frozen(cls)
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, order=order, kw_only=kw_only)(cls)

    return make


def is_frozen(cls: Any) -> bool:
    """Whether only `__init__` can set the fields of this dataclass."""
    return cls.__setattr__ is _refuse_to_set or bool(cls.__dataclass_params__.frozen)


def _frozen(cls: type[_T]) -> type[_T]:
    cls.__doc__ = (
        cls.__doc__ or cls.__name__
    )  # or the standard library writes the fields here, which takes long
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    fields = dataclasses.fields(made)
    values = _values_of([field.name for field in fields])

    def equals(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def to_hash(self: Any) -> int:
        return hash(values(self))

    functions = {
        "__init__": _init(made, fields),
        "__eq__": equals,
        "__hash__": to_hash,
        "__repr__": _to_text,
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
        "__getstate__": _state,
        "__setstate__": _set_state,
    }
    for name, function in functions.items():
        if vars(made).get(name) is None:  # an __eq__ of the class's own sets __hash__ to None
            setattr(made, name, function)
    return made  # type: ignore[no-any-return]


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns an object's values as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    only = attrgetter(*names)
    return lambda each: (only(each),)


def _init(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """`__init__` of the class. It sets each field through the descriptor of its slot, because the class's
    `__setattr__` refuses."""
    names: dict[str, Any] = {}
    parameters, statements = ["self"], []
    for field in fields:
        names[f"set_{field.name}"] = getattr(cls, field.name).__set__
        statements.append(f"set_{field.name}(self, {field.name})")
        if field.default is dataclasses.MISSING:
            parameters.append(field.name)
        else:
            names[f"default_{field.name}"] = field.default
            parameters.append(f"{field.name}=default_{field.name}")
    if hasattr(cls, "__post_init__"):
        statements.append("self.__post_init__()")
    exec(_compiled(f"def __init__({', '.join(parameters)}): {'; '.join(statements) or 'pass'}"), names)
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


@cache
def _compiled(source: str) -> CodeType:
    """Many classes have the same fields, such as a group and a queue."""
    return compile(source, "<__init__ of a frozen dataclass>", "exec")


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _to_text(self: Any) -> str:
    values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self))
    return f"{type(self).__qualname__}({values})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
