"""What Spark says of a failed query is cut down to what went wrong."""

from __future__ import annotations

import pytest

from quorum.spark import QueryFailed, cause, plain_failures

FROM_A_WORKER = """[STREAM_FAILED] Query [id = 3f, runId = 9a] terminated with exception: Job aborted due to
stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure:
Lost task 0.3 in stage 1.0 (TID 9) (127.0.0.1 executor driver):
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
    ^^^^^^^^^
ValueError: the first of two

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/quorum/spark/stream.py", line 12, in read
    raise DataLoss(text)
quorum.spark.errors.DataLoss: queue 'orders', subscription 'report': offset 3 was released
these messages are delivered to others
 SQLSTATE: 38000

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.lang.IllegalStateException
"""


def test_the_last_python_error_is_the_cause() -> None:
    assert cause(RuntimeError(FROM_A_WORKER)) == (
        "queue 'orders', subscription 'report': offset 3 was released\nthese messages are delivered to others"
    )


def test_errors_of_others_are_named_with_their_class() -> None:
    text = "Traceback (most recent call last):\n  File 'x', line 1\n    f()\nzipfile.BadZipFile: not a zip\n"
    assert cause(RuntimeError(text)) == "BadZipFile: not a zip"
    assert cause(RuntimeError("Traceback (most recent call last):\n  File 'x'\nKeyError\n")) == "KeyError"


def test_without_a_python_error_the_first_line_is_told() -> None:
    assert (
        cause(RuntimeError("\n[TABLE_NOT_FOUND] no table\n\tat x.y(Z.scala)")) == "[TABLE_NOT_FOUND] no table"
    )
    assert cause(RuntimeError()) == "RuntimeError"
    called = "An error occurred while calling o52.load.\n: org.apache.spark.SparkException: [X] none\n\tat x.y(Z.scala)"
    assert cause(RuntimeError(called)) == "[X] none"


def test_a_query_that_ended_without_a_reason_is_told_what_is_usual() -> None:
    text = "[STREAM_FAILED] Query [id = 3f, runId = 9a] terminated with exception:  SQLSTATE: XXKST\n=== Query ===\n"
    assert "a Python process of the query has ended" in cause(RuntimeError(text))
    other = "[STREAM_FAILED] Query [id = 3f, runId = 9a] terminated with exception: no SQLSTATE: XXKST"
    assert cause(RuntimeError(other)) == other


def test_only_what_spark_raises_is_turned_into_a_failed_query() -> None:
    from pyspark.errors import PySparkRuntimeError

    with pytest.raises(QueryFailed, match=r"^offset 3$") as raised, plain_failures():
        raise PySparkRuntimeError(
            "Traceback (most recent call last):\n  x\nquorum.spark.errors.DataLoss: offset 3\n"
        )
    assert raised.value.__suppress_context__
    with pytest.raises(KeyError), plain_failures():
        raise KeyError("mine")
