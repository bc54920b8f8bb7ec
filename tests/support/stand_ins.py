"""Whether a stand-in still fits the part of the product that it replaces in a broken build.

A stand-in that no longer fits shows nothing: a method under an old name is never called, and a function with other
parameters fails at its first call, which looks as if the broken promise had been noticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def misfit(made: Callable[..., Any], replaced: Any) -> str | None:
    """How a function differs from the one that it replaces; None if it can be called alike.

    The first parameter of a method may have another name. A stand-in may take any arguments: `*_`.
    """
    if not callable(replaced):
        return f"replaces {replaced!r}, which is not called"
    if inspect.iscoroutinefunction(made) != inspect.iscoroutinefunction(replaced):
        return "only one of them is a coroutine function"
    own, its = (list(inspect.signature(each).parameters.values()) for each in (made, replaced))
    for mine, other in zip(own, its, strict=False):
        if mine.kind is inspect.Parameter.VAR_POSITIONAL:
            return None
        is_first = mine is own[0] and other.name == "self"
        if (mine.name != other.name and not is_first) or mine.kind != other.kind:
            return f"has the parameter '{mine}' where the product has '{other}'"
    if len(own) != len(its):
        return f"has {len(own)} parameters, the product {len(its)}"
    return None


def misfits(made: type) -> list[str]:
    """The same of each method that a subclass replaces; a method that replaces nothing is one, too."""
    found = []
    for name, value in vars(made).items():
        if name.startswith("__") and name.endswith("__"):
            continue
        bases = [vars(base)[name] for base in made.__mro__[1:] if name in vars(base)]
        what = "replaces nothing" if not bases else None
        if bases and inspect.isfunction(value):
            what = misfit(value, bases[0])
        if what is not None:
            found.append(f"{made.__name__}.{name} {what}")
    return found
