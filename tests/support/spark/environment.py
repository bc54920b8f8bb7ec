"""The environment of everything that starts Spark here: no JAVA_HOME, and a PATH of bash, ps and coreutils alone.

So the Java runtime is the one from PyPI, in drivers that are processes of their own, too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.repository import ROOT

# fmt: off
COREUTILS = (
    "basename", "cat", "chmod", "chown", "cp", "cut", "date", "dirname", "echo", "env", "expr", "false",
    "head", "id", "ln", "ls", "mkdir", "mktemp", "mv", "nice", "nohup", "nproc", "printf", "pwd",
    "readlink", "realpath", "rm", "rmdir", "sleep", "sort", "stat", "tail", "tee", "test", "touch", "tr",
    "true", "tty", "uname", "wc", "whoami",
)
# fmt: on
TOOLS = ("bash", "ps", *COREUTILS)
"""What Spark's scripts and its checkpoints call, and no more."""
PATHS = (ROOT, ROOT / "selectors", ROOT / "spark", ROOT / "tests")

FAST_START = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options of a JVM that lives for minutes, beside others: optimising its code would cost more than it saves.

With one compiler the JVM would have room for 48 MB of compiled code, and the tests of one session fill that. Then it
fails to link methods with a VirtualMachineError, and after such an error in a task Spark ends its JVM. 240 MB is what
JVMs with both compilers have; only what is used takes memory. Spark's own classes are not verified when they are
loaded: that is a fifth of the time until a session has started and answered its first queries.
"""
SMALL_DATA = {
    "spark.sql.shuffle.partitions": "2",
    # Spark walks its expressions; to generate Java for each query, and compile it, takes longer than a small query.
    # `quorum pipeline verify` and the installed wheel are tested with what users have, so that both ways are taken
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of sessions that see a few thousand rows."""


def path_without_java(directory: Path) -> str:
    """A PATH on which there is all that Spark needs, and no java. Fills the directory, which is new."""
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (directory / tool).symlink_to(found)
    return str(directory)


def without_java(folder: Path) -> dict[str, str]:
    """This process's environment, with this PATH instead, a cache of its own, and no settings of Java or Spark."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAVA_", "SPARK_", "PYSPARK_"))
    }
    return kept | {
        "PATH": path_without_java(folder / "tools"),
        # a session sets this when it starts, and PySpark reads it whenever it connects: also after this environment
        # was put in place again for another module
        "SPARK_AUTH_SOCKET_TIMEOUT": "300",
        "XDG_CACHE_HOME": str(folder / "cache"),
        # workers and drivers are processes of their own: they have to find the same code
        "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
    }
