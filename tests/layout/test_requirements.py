"""The lock files in requirements/: `make lock` writes them, `make install`, CI and the image install from them."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.repository import ROOT

FOLDER = ROOT / "requirements"
EXTRAS = {"server": ("server",), "dev": ("dev", "otel", "server", "spark")}
"""Lock file -> the extras that it is for."""
GROUPS = {"dev": ("build",), "build": ("build",), "proto": ("proto",), "audit": ("audit",)}
"""Lock file -> the dependency groups that it is for."""
FILES = ("server", "dev", "build", "proto", "audit")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def entries(name: str) -> list[tuple[Requirement, str]]:
    """Each requirement of a lock file, and the text of its hashes."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    split = [line.partition("--hash") for line in lines]
    return [(Requirement(requirement), comma + rest) for requirement, comma, rest in split]


def locked(name: str, python: str) -> dict[str, str]:
    """Package -> version, with this version of Python on Linux."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, str] = {}
    for requirement, _ in entries(name):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            package = canonicalize_name(requirement.name)
            assert package not in found, f"{name}.txt has two versions of {package} for Python {python}"
            [specifier] = requirement.specifier
            assert specifier.operator == "=="
            found[package] = specifier.version
    return found


def wanted(name: str) -> list[Requirement]:
    """What pyproject.toml demands of the packages in a lock file."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = configuration["project"]
    texts: list[str] = list(project["dependencies"]) if name in EXTRAS else []
    for extra in EXTRAS.get(name, ()):
        texts += project["optional-dependencies"][extra]
    for group in GROUPS.get(name, ()):
        texts += configuration["dependency-groups"][group]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_file_satisfies_the_bounds_of_the_project(name: str, python: str) -> None:
    versions = locked(name, python)
    for requirement in wanted(name):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{name}.txt lacks {requirement}; run `make lock`"
        assert requirement.specifier.contains(version), f"{name}.txt has {version} for {requirement}"


@pytest.mark.parametrize("name", FILES)
def test_every_locked_package_has_hashes(name: str) -> None:
    for requirement, hashes in entries(name):
        parts = hashes.split()
        assert parts and all(HASH.fullmatch(part) for part in parts), requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_files_agree_with_each_other(python: str) -> None:
    everything = locked("dev", python)
    for name in ("server", "build"):
        assert locked(name, python).items() <= everything.items()


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_file_has_what_its_packages_need(name: str) -> None:
    """pip refuses a lock file with a package missing. The requirements of the installed packages are compared."""
    python = PYTHONS[0]
    versions = locked(name, python)
    compared = 0
    for package, version in versions.items():
        try:
            found = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        if found.version != version:  # another one has other requirements
            continue
        for text in found.requires or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            compared += 1
            needed = versions.get(canonicalize_name(requirement.name))
            assert needed is not None, f"{package} needs {requirement}, which {name}.txt lacks"
            assert requirement.specifier.contains(needed), f"{package} needs {requirement}, not {needed}"
    assert compared > 10


def test_the_page_lists_the_packages_of_a_client_with_their_lowest_versions() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    table = page.partition("\nA client needs ")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    listed = {package: version for packages, version, _ in rows for package in packages.split(", ")}
    direct = [
        Requirement(text)
        for text in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "dependencies"
        ]
    ]
    for requirement in direct:
        [lowest] = [each.version for each in requirement.specifier if each.operator == ">="]
        assert listed[requirement.name].startswith(f"{lowest} or later"), requirement
    found, left = set(), direct
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            left += [Requirement(text) for text in metadata.requires(name) or ()]
    assert found == set(listed)


@pytest.mark.parametrize(
    ("package", "pattern", "generated"),
    [
        ("grpcio", r"GRPC_GENERATED_VERSION = '([\d.]+)'", "queue_pb2_grpc.py"),
        ("protobuf", r"# Protobuf Python Version: ([\d.]+)", "queue_pb2.py"),
    ],
)
def test_clients_need_no_later_version_than_the_generated_code(
    package: str, pattern: str, generated: str
) -> None:
    text = (ROOT / "quorum" / "v1" / generated).read_text(encoding="utf-8")
    found = re.search(pattern, text)
    assert found is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [bounds] = [each.specifier for each in map(Requirement, project["dependencies"]) if each.name == package]
    assert f">={found[1]}" in str(bounds).split(",")


def test_nothing_is_installed_without_hashes() -> None:
    """By make, by CI and in the image, except for the project itself and for uv, which writes the lock files."""
    for file in ("Makefile", ".ci/run", "deploy/Containerfile"):
        text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
        commands = [part.strip() for line in text.splitlines() for part in line.split("&&")]
        installs = [each for each in commands if "$(PIP)" in each or "pip install " in each]
        assert all(
            each.startswith(("#", "PIP "))
            or each.endswith("$(PIP) uv")
            or any(safe in each for safe in ("--require-hashes", "$(LOCKED)", "--no-deps"))
            for each in installs
        ), (file, installs)
