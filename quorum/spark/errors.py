"""What can go wrong on the Spark side, and whose fault it is.

QuorumSparkError
├── SetupError      Spark, Arrow or Java is missing or too old (also an OperatorError: told in one line)
├── OptionError     an option, schema or predicate that can never work
├── DataLoss        messages a checkpoint asks for are not there as they were
└── QueryFailed     a query ended badly; the text is the Python cause, without the JVM's trace

The service's own refusals stay what they are (quorum.client.errors).
"""

from __future__ import annotations

from quorum.errors import OperatorError


class QuorumSparkError(Exception):
    """Base of everything that this package raises on purpose."""


class SetupError(QuorumSparkError, OperatorError):
    """Something that has to be installed is not, or is too old. One sentence says what to do."""


class OptionError(QuorumSparkError, ValueError):
    """An option, schema or predicate that can never work: what was given, and what is allowed."""


class DataLoss(QuorumSparkError):
    """A checkpoint asks for messages that were settled or released since."""


class QueryFailed(QuorumSparkError, OperatorError):
    """A query ended badly. The text is what went wrong in Python, not the JVM's trace."""
