"""Decoded selectors, and whether a queue can answer one."""

from __future__ import annotations

from functools import lru_cache

from fifo.commands import QueueConfig
from fifo.effects import Refused
from quorum_selectors import canonical
from quorum_selectors.compiled import Condition, compile_expression
from quorum_selectors.errors import EncodingError, FieldNameError
from quorum_selectors.expression import Expression, field_names, steps
from quorum_selectors.lookup_costs import Filed, cells_of
from quorum_selectors.predicates import Requirement, requirement
from quorum_selectors.wellknown import KeptFields, resolve_field_names


class Selector:
    """An encoded selector, decoded. Raises EncodingError."""

    __slots__ = ("_condition", "_found", "steps", "tree")

    def __init__(self, encoded: bytes) -> None:
        self.tree: Expression = canonical.decode(encoded)
        self.steps = steps(self.tree)
        self._condition: Condition | None = None
        self._found: tuple[Requirement | None, Filed] | None = None

    @property
    def requirement(self) -> Requirement | None:
        """Predicates of which one is TRUE wherever the selector is."""
        return self._find()[0]

    @property
    def filed(self) -> Filed:
        """For what looking up messages costs."""
        return self._find()[1]

    def _find(self) -> tuple[Requirement | None, Filed]:
        """Both, found when they are first asked for."""
        if self._found is None:
            found = requirement(self.tree)
            self._found = found, (cells_of(found), self.steps)
        return self._found

    @property
    def condition(self) -> Condition:
        """For one message; made when it is first asked for."""
        if self._condition is None:
            self._condition = compile_expression(self.tree)
        return self._condition


@lru_cache(maxsize=256)
def decoded(selector: bytes) -> Selector:
    """An encoded selector. Raises EncodingError."""
    return Selector(selector)


@lru_cache(maxsize=256)
def kept_fields(names: tuple[str, ...]) -> KeptFields:
    """What a queue keeps. Raises FieldNameError."""
    return resolve_field_names(names)


def refuse_selector(config: QueueConfig, selector: bytes) -> Refused | None:
    """Why a queue cannot answer this selector."""
    if not selector:
        return None
    if not config.filter_enabled:
        return Refused(
            "bad_argument", f"queue {config.name!r} does not filter: it was declared without x-filter-enabled"
        )
    try:
        keys = field_names(decoded(selector).tree)
        missing = kept_fields(config.filter_field_names).first_not_kept(keys)
    except (EncodingError, FieldNameError) as error:
        return Refused("bad_argument", f"selector: {error}")
    if missing is None:
        return None
    kept = ", ".join(config.filter_field_names)
    return Refused("field_not_kept", f"queue {config.name!r} keeps no field {missing!r}; kept: {kept}")
