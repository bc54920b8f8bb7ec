"""Decoded selectors, and whether a queue can answer one."""

from __future__ import annotations

from functools import lru_cache

from fifo.commands import QueueConfig
from fifo.effects import Refused
from quorum_selectors import canonical
from quorum_selectors.compiled import Condition, compile_expression
from quorum_selectors.errors import EncodingError, FieldNameError
from quorum_selectors.expression import Expression, field_names, steps
from quorum_selectors.known_fields import KeptFields, resolve_field_names
from quorum_selectors.lookup_costs import Filed, cells_of
from quorum_selectors.predicates import Requirement, requirement


class Selector:
    """A decoded selector. Raises EncodingError."""

    __slots__ = ("_condition", "_found", "steps", "tree")

    def __init__(self, encoded: bytes) -> None:
        self.tree: Expression = canonical.decode(encoded)
        self.steps = steps(self.tree)
        self._condition: Condition | None = None
        self._found: tuple[Requirement | None, Filed] | None = None

    @property
    def requirement(self) -> Requirement | None:
        """Predicates of which at least one is TRUE for every message that the selector matches."""
        return self._find()[0]

    @property
    def filed(self) -> Filed:
        """What the cost of looking up messages is computed from."""
        return self._find()[1]

    def _find(self) -> tuple[Requirement | None, Filed]:
        """The requirement and `filed`, computed at their first use."""
        if self._found is None:
            found = requirement(self.tree)
            self._found = found, (cells_of(found), self.steps)
        return self._found

    @property
    def condition(self) -> Condition:
        """The condition that evaluates one message, made at its first use."""
        if self._condition is None:
            self._condition = compile_expression(self.tree)
        return self._condition


@lru_cache(maxsize=256)
def decoded(selector: bytes) -> Selector:
    """The selector that these bytes encode. Raises EncodingError."""
    return Selector(selector)


@lru_cache(maxsize=256)
def kept_fields(names: tuple[str, ...]) -> KeptFields:
    """The fields that a queue keeps. Raises FieldNameError."""
    return resolve_field_names(names)


def refuse_others(config: QueueConfig, what: str) -> Refused:
    """The refusal of something that a single active consumer, or message groups, exclude."""
    argument = "x-single-active-consumer" if config.single_active_consumer else "x-message-groups"
    return Refused(
        "bad_argument",
        f"queue {config.name!r} has {argument}, which excludes {what}; allowed: attached consumers",
    )


def refuse_selector(config: QueueConfig, selector: bytes) -> Refused | None:
    """The refusal if a queue cannot answer this selector, else None."""
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
