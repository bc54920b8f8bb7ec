"""Errors that an operator can correct; they are reported in one line without a traceback.

OperatorError       base: the text names the fault, the value, and what is allowed
├── ConfigError         a configuration file, variable or flag
├── TooOld              data that a newer release has used
└── ClusterError        a local cluster of processes: it does not start, answer or stop
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEFECT = 70
"""Exit status (EX_SOFTWARE) after a defect of Quorum, which no user can correct."""
TOO_OLD = 78
"""Exit status (EX_CONFIG): start this member with a newer release."""


class OperatorError(Exception):
    """An error with a cause outside of the program, which the operator can correct."""


class ConfigError(OperatorError):
    """An invalid configuration. The text has one line for each finding."""


class TooOld(OperatorError):
    """A newer release has used the data, in a way that this one does not know."""


class ClusterError(OperatorError):
    """A local cluster that does not start, answer or stop as requested."""


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """An error of the system in the block that names no file, as that of a full disk, names this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def how_to_install(extra: str) -> str:
    """The command that brings an extra of the distribution, which is on no package index. Empty: what clients need."""
    chosen = f"[{extra}]" if extra else ""
    return (
        f"pip install 'FILE.whl{chosen}', where FILE.whl is the wheel of this release; "
        f"'.{chosen}' in its source tree"
    )
