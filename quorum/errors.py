"""What an operator can put right, and is told in one line without a traceback.

OperatorError       base: the text says what is wrong, with what value, and what is allowed
├── ConfigError         a configuration file, variable or flag
└── ClusterError        a local cluster of processes: it does not start, answer or stop
"""

from __future__ import annotations


class OperatorError(Exception):
    """What went wrong is outside the program and can be put right by who runs it."""


class ConfigError(OperatorError):
    """A configuration that cannot be taken. One line a finding."""


class ClusterError(OperatorError):
    """A local cluster that does not do what was asked of it."""
