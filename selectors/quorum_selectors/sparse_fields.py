"""The values of one field that have no dense column in their block.

Values are kept as runs: the slots first .. end-1 all have the same value. So a row that thousands of messages share
costs one run for each of its fields, whatever the number of messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter

from quorum_selectors.expression import FieldValue

Run = tuple[int, int, FieldValue]
"""First slot, slot after the last one, value."""

RUN_BYTES = 180
"""Approximate memory of a run with its numbers and its value; only for accounts of memory."""
FIELD_BYTES = 150
"""Approximate memory of a field without runs."""

_first = itemgetter(0)
_end = itemgetter(1)


def runs_bytes(runs: list[Run]) -> int:
    """Approximate bytes of memory of these runs."""
    return len(runs) * RUN_BYTES + sum([len(value) for _, _, value in runs if isinstance(value, str)])


class SparseField:
    """Runs of slots, sorted; no two of them overlap."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def put(self, runs: list[Run]) -> None:
        """Add ascending runs. Their slots must have no value yet; other slots between them may have one."""
        if not runs:
            return
        at = bisect_left(self._runs, runs[0][0], key=_first)
        if at == bisect_left(self._runs, runs[-1][0], key=_first):
            self._runs[at:at] = runs
        else:
            self._runs = sorted(self._runs + runs, key=_first)

    def clear(self, first: int, end: int) -> None:
        """Remove the values of the slots first .. end-1."""
        low, high = self._overlapping(first, end)
        if low == high:
            return
        rest: list[Run] = []
        run_first, _, value = self._runs[low]
        if run_first < first:
            rest.append((run_first, first, value))
        _, run_end, value = self._runs[high - 1]
        if run_end > end:
            rest.append((end, run_end, value))
        self._runs[low:high] = rest

    def get(self, slot: int) -> FieldValue | None:
        """The value of one slot; None if it is absent."""
        low, high = self._overlapping(slot, slot + 1)
        return self._runs[low][2] if low < high else None

    def runs(self, first: int, end: int) -> Iterator[Run]:
        """The runs among the slots first .. end-1, cut at these bounds."""
        low, high = self._overlapping(first, end)
        for run_first, run_end, value in self._runs[low:high]:
            yield max(run_first, first), min(run_end, end), value

    def _overlapping(self, first: int, end: int) -> tuple[int, int]:
        """The positions of the runs that have a slot of first .. end-1."""
        low = bisect_right(self._runs, first, key=_end)
        return low, max(low, bisect_left(self._runs, end, key=_first))

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return FIELD_BYTES + runs_bytes(self._runs)
