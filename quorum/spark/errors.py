"""The errors of the Spark side and their causes.

QuorumSparkError
├── SetupError      Spark, Arrow or Java is missing or too old (also an OperatorError: reported in one line)
├── OptionError     an option, schema or predicate that can never work
├── DataLoss        messages that a checkpoint asks for were settled or released
└── QueryFailed     a query failed; the text is the Python cause, without the JVM's trace

The service's own refusals are raised unchanged (quorum.client.errors).
"""

from __future__ import annotations

from quorum.errors import OperatorError


class QuorumSparkError(Exception):
    """Base of all errors that this package raises on purpose."""


class SetupError(QuorumSparkError, OperatorError):
    """A required installation is missing or too old. The text includes what to do."""


class OptionError(QuorumSparkError, ValueError):
    """An option, schema or predicate that can never work. The text names the given value and what is allowed."""


class DataLoss(QuorumSparkError):
    """A checkpoint asks for messages that were settled or released since."""


class QueryFailed(QuorumSparkError, OperatorError):
    """A query failed. The text is the cause in Python without the JVM's trace."""
