"""Extracts the cause from Spark's errors, which surround one useful line with sixty lines of the JVM's frames.

An error of our own Python code arrives as nested text: the worker's traceback, in a PythonException, in a job's
failure, in a StreamingQueryException. The last line of the last traceback is the cause.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from quorum.spark.errors import QueryFailed

_TRACE = "Traceback (most recent call last):"
_JVM_FRAME = re.compile(r"^\s*(at |\.\.\. \d+ more|Caused by:|Suppressed:|\tat )")
_SQLSTATE = re.compile(r"^( SQLSTATE: \w+)+$")
_RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_PY4J = "An error occurred while calling "
_JVM_CLASS = re.compile(r"^[a-z]\w*(\.[\w$]+)+: ")
_NO_REASON = re.compile(r"terminated with exception: +SQLSTATE: \w+$")
PROCESS_ENDED = (
    "Spark gives no reason. Usually a Python process of the query has ended, because it was killed or the machine "
    "had no memory left; start the query again, and it continues from its checkpoint"
)
MAX_CHARACTERS = 2_000


def cause(error: BaseException) -> str:
    """The error's cause as a short text: the Python exception if there is one, else the first line of Spark's text."""
    text = str(error)
    return (_python_cause(text) or _first_line(text) or type(error).__name__)[:MAX_CHARACTERS]


@contextmanager
def plain_failures() -> Iterator[None]:
    """Convert errors of Spark and Py4J inside the block to QueryFailed with the cause; other errors pass."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise QueryFailed(cause(error)) from None


def quiet_query_errors() -> None:
    """Silence the loggers that print the error of a query a second time, with all frames of the JVM."""
    from pyspark.logger import PySparkLogger

    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)


def _python_cause(text: str) -> str:
    """The message of the last exception of the last Python traceback; empty if there is no traceback."""
    found = ""
    for piece in text.split(_TRACE)[1:]:
        lines = piece.splitlines()
        place = 0
        # frames and their source are indented; the exception's line is not
        while place < len(lines) and (not lines[place].strip() or lines[place][0].isspace()):
            place += 1
        raised: list[str] = []
        for line in lines[place:]:
            if _JVM_FRAME.match(line) or _SQLSTATE.match(line) or not line.strip():
                break
            raised.append(line)
        if raised:
            found = _without_kind("\n".join(raised))
    return found


def _without_kind(raised: str) -> str:
    """The exception's text: our own exceptions without their class, others with it."""
    first, *more = raised.splitlines()
    match = _RAISED.match(first)
    if match is None:
        return raised
    kind, message = match["kind"], match["text"] or ""
    name = kind.rpartition(".")[2]
    own = kind.startswith("quorum.") and message
    return "\n".join([message if own else f"{name}: {message}" if message else name, *more])


def _first_line(text: str) -> str:
    """The first line, without Py4J's heading and without the class of the JVM's exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_PY4J) and lines[1].startswith(": "):
        return _JVM_CLASS.sub("", lines[1].removeprefix(": "))
    first = lines[0] if lines else ""
    return f"{first}. {PROCESS_ENDED}" if _NO_REASON.search(first) else first
