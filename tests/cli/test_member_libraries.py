"""The settings of libraries that a member makes before it imports them."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os
from quorum.cli.commands.serve import set_up_libraries
set_up_libraries()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ["OPENBLAS_NUM_THREADS"])
"""


def threads_and_setting(**variables: str) -> tuple[int, str]:
    """Of a process that imports NumPy as a member does."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    threads, setting = ran.stdout.split()
    return int(threads), setting


def test_numpy_starts_no_threads_in_a_member() -> None:
    assert threads_and_setting() == (1, "1")


def test_a_setting_of_the_operator_counts() -> None:
    assert threads_and_setting(OPENBLAS_NUM_THREADS="2")[1] == "2"
