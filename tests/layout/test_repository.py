"""Traps of this layout, and what is generated or built from it."""

from __future__ import annotations

import email
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from quorum import __version__
from quorum.api.http.description import openapi
from support.repository import ROOT

FOLDERS = sorted(
    {f"tests/{file.relative_to(ROOT / 'tests').parts[0]}" for file in ROOT.glob("tests/*/test_*.py")}
)


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MAKEFLAGS")}, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done


def test_the_standard_selectors_module_is_not_hidden_at_the_repository_root() -> None:
    assert not (ROOT / "selectors" / "__init__.py").exists()
    script = "import asyncio, subprocess, selectors; selectors.DefaultSelector; print(selectors.__file__)"
    found = run(sys.executable, "-c", script).stdout.strip()
    assert not Path(found).is_relative_to(ROOT / "selectors")


def test_plain_folders_stay_plain() -> None:
    for folder in ("proto", "selectors", "spark", "deploy", "docs"):
        assert not (ROOT / folder / "__init__.py").exists()
    assert sorted((ROOT / "tests").rglob("__init__.py")) == []


def test_no_module_is_named_like_a_standard_one() -> None:
    taken = {"queue", "types", "logging", "token", "ast", "struct", "selectors", "random", "time", "typing"}
    for folder in (
        ROOT / "quorum",
        ROOT / "fifo",
        ROOT / "selectors" / "quorum_selectors",
        ROOT / "spark",
        ROOT / "tests",
    ):
        assert [str(file) for file in sorted(folder.rglob("*.py")) if file.stem in taken] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [file.name for file in sorted((ROOT / "tests").rglob("test_*.py"))]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_folder_of_tests_is_in_one_part_of_make_check_and_make_test() -> None:
    parts = []
    for target in ("check", "test"):
        told = run("make", "--dry-run", target).stdout
        for command in re.findall(r"-m pytest (tests[^)]*)\)", told):
            words = command.replace("--ignore ", "--ignore=").split()
            parts.append([word for word in words if not word.startswith("-")])
            if parts[-1] == ["tests"]:
                without = {word.removeprefix("--ignore=") for word in words[1:]}
                parts[-1] = [each for each in FOLDERS if each not in without]
    assert sorted(folder for part in parts for folder in part) == FOLDERS
    assert len(parts) > 5


def test_the_committed_generated_code_is_what_the_proto_files_say(tmp_path: Path) -> None:
    # The compiler has an environment of its own in that of the tests; make creates it when it is missing.
    compiler = Path(sys.prefix) / "proto"
    run("make", "-s", "proto", f"PYTHON={sys.executable}", f"PROTO={compiler}", f"OUT={tmp_path}")
    fresh, committed = tmp_path / "quorum" / "v1", ROOT / "quorum" / "v1"
    files = sorted(file.name for file in fresh.iterdir())
    present = sorted(file.name for file in committed.iterdir() if file.suffix in (".py", ".pyi"))
    assert present == sorted([*files, "__init__.py"])
    _, different, missing = filecmp.cmpfiles(fresh, committed, files, shallow=False)
    assert (different, missing) == ([], []), "run `make proto` and commit what it changes"


NAMED_VERSION = re.compile(r"\b(?:quorum_queue-|quorum:)(\d+\.\d+\.\d+)")
"""The version in the name of a wheel or of an image."""


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__, "the newest heading of the change log is another version"
    assert len(set(headings)) == len(headings)


def test_wheels_and_images_are_named_with_this_version() -> None:
    """In pages and in deploy/. The page about upgrades names other versions, too."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").iterdir()]
    found = {
        str(file.relative_to(ROOT)): set(NAMED_VERSION.findall(file.read_text(encoding="utf-8")))
        for file in files
        if file.is_file()
    }
    named = {file: versions for file, versions in found.items() if versions}
    assert {"docs/deploy.md", "deploy/Containerfile", "deploy/compose.yaml", "deploy/kubernetes.yaml"} <= set(
        named
    )
    assert __version__ in named.pop("docs/upgrade.md", {__version__})
    assert {file: versions for file, versions in named.items() if versions != {__version__}} == {}


def test_what_a_member_says_of_itself_is_this_version() -> None:
    assert openapi()["info"]["version"] == __version__
    assert run(sys.executable, "-m", "quorum", "--version").stdout == f"quorum {__version__}\n"


def built(source: Path, out: Path, **environment: str) -> Path:
    """The wheel of a source folder."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source, **environment)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_the_product_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"quorum_queue-{__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"quorum", "fifo", "quorum_selectors", "pyspark_quorum"}
    for name in (
        "quorum_selectors/jms.lark",
        "quorum/py.typed",
        "quorum/v1/queue_pb2.pyi",
        *(f"quorum/v1/{file.name}" for file in (ROOT / "proto" / "quorum" / "v1").glob("*.proto")),
        "quorum/demo/flights.csv.gz",
        "fifo/commands.py",
        "quorum/spark/log4j2-quiet.properties",
    ):
        assert name in names


def test_the_wheel_says_what_the_project_file_says(wheel: Path) -> None:
    """Package indexes, and tools that look for licenses, read nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    found = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert found["Name"] == project["name"]
    assert found["Summary"] == project["description"]
    assert found["Requires-Python"] == project["requires-python"]
    assert found["License-Expression"] == project["license"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE"]
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert found.get_all("Classifier") == sorted(project["classifiers"])
    assert found.get_all("Provides-Extra") == sorted(project["optional-dependencies"])
    pages = [f"{label}, {url}" for label, url in project.get("urls", {}).items()]
    assert found.get_all("Project-URL", []) == pages
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_wheel_has_the_proto_files_as_they_are(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    files = {f"quorum/v1/{file.name}": file.read_bytes() for file in ROOT.glob("proto/quorum/v1/*.proto")}
    assert len(files) == 3
    assert {name: archive.read(name) for name in archive.namelist() if name.endswith(".proto")} == files


def test_builds_of_equal_files_are_equal(tmp_path: Path) -> None:
    """Times, permissions, order and the settings of the machine are not in the wheel."""
    parts = ("LICENSE", "README.md", "fifo", "proto", "pyproject.toml", "quorum", "selectors", "spark")
    settings = (
        {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
        {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"},
    )
    wheels = []
    for number, environment in enumerate(settings):
        copy = tmp_path / f"copy-{number}"
        for part in parts if number == 0 else reversed(parts):
            _copy(ROOT / part, copy / part, mode=(0o600, 0o664)[number], time=1_600_000_000 + number)
        wheels.append(built(copy, tmp_path / f"dist-{number}", **environment).read_bytes())
    assert wheels[0] == wheels[1]


def _copy(source: Path, target: Path, mode: int, time: int) -> None:
    """Copy a file or folder, without what the interpreter has left there."""
    if source.is_dir():
        for file in source.iterdir():
            if file.name != "__pycache__":
                _copy(file, target / file.name, mode, time)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)
    os.utime(target, (time, time))


def test_the_wheel_installs_into_a_fresh_environment_and_its_command_runs(
    wheel: Path, tmp_path: Path
) -> None:
    """Its dependencies are lent from this environment by a path file: this is about what the wheel itself brings."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).stdout.strip()
    )
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "-q",
        wheel,
        cwd=tmp_path,
    )
    lent = Path(
        run(
            sys.executable, "-c", "import grpc, pathlib; print(pathlib.Path(grpc.__file__).parents[1])"
        ).stdout
    )
    (site / "lent.pth").write_text(str(lent).strip() + "\n", encoding="utf-8")
    version = run(home / "bin" / "quorum", "--version", cwd=tmp_path).stdout
    assert version == f"quorum {__version__}\n"
    script = "import quorum, fifo, quorum_selectors.jms as j; print(quorum.__file__); j.parse('a = 1')"
    where = run(python, "-c", script, cwd=tmp_path).stdout.strip()
    assert Path(where).is_relative_to(home)
    assert "quorum node" in run(python, "-m", "quorum", "node", "--help", cwd=tmp_path).stdout
