"""The rooms: who may import whom, and what the pure ones must never touch (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from support.imports import Import, imports_of, modules
from support.repository import IMPORT_PATH, ROOT

# Each room, and the rooms it may import besides itself. A room is the longest prefix of a module's name listed here.
ALLOWED = {
    "quorum_selectors": (),
    "fifo": ("quorum_selectors",),
    "quorum.v1": (),
    "quorum.errors": (),
    "quorum.addresses": (),
    "quorum.columns": (),
    "quorum.counts": (),
    "quorum.redrive": (),
    "quorum.definitions": ("quorum.v1",),
    "quorum.round_robin": (),
    "quorum.catalog": ("fifo", "quorum_selectors", "quorum.addresses"),
    "quorum.log": ("quorum.errors",),
    "quorum.replication": ("quorum.log", "quorum.errors"),
    "quorum.config": ("quorum.replication", "quorum.addresses", "quorum.errors"),
    "quorum.node": (
        "quorum.addresses",
        "quorum.round_robin",
        "fifo",
        "quorum_selectors",
        "quorum.v1",
        "quorum.catalog",
        "quorum.log",
        "quorum.replication",
        "quorum.config",
        "quorum.errors",
    ),
    "quorum.api": (
        "quorum.addresses",
        "quorum.round_robin",
        "quorum.columns",
        "fifo",
        "quorum_selectors",
        "quorum.v1",
        "quorum.catalog",
        "quorum.log",
        "quorum.replication",
        "quorum.config",
        "quorum.errors",
        "quorum.node",
        "quorum.api.http",
    ),
    "quorum.api.http": (
        "quorum.addresses",
        "fifo",
        "quorum_selectors",
        "quorum.v1",
        "quorum.catalog",
        "quorum.log",
        "quorum.replication",
        "quorum.config",
        "quorum.errors",
        "quorum.node",
        "quorum",  # the version
        "quorum.api",
        "quorum.definitions",
        "quorum.redrive",
    ),
    "quorum.client": ("quorum.v1", "quorum.definitions", "quorum.redrive"),
    "quorum.sync": ("quorum.client", "quorum.redrive", "quorum.v1"),
    "quorum.bulk": ("quorum.client", "quorum.v1"),
    "quorum": ("quorum.client", "quorum.sync", "quorum.bulk"),
    "quorum.__main__": ("quorum.cli",),
    "quorum.histories": ("quorum.errors",),
    "quorum.spark": (
        "quorum_selectors",
        "quorum.columns",
        "quorum.counts",
        "quorum.client",
        "quorum.errors",
        "quorum.histories",
    ),
    "pyspark_quorum": ("quorum.spark",),
    "quorum.local_cluster": (
        "quorum.addresses",
        "quorum.counts",
        "quorum.errors",
        "quorum.v1",
        "quorum.log",
        "quorum.node",
        "quorum.client",
        "quorum.sync",
    ),
    "quorum.cli": (
        "quorum.addresses",
        "quorum.counts",
        "quorum",
        "quorum_selectors",
        "quorum.v1",
        "quorum.config",
        "quorum.errors",
        "quorum.log",
        "quorum.node",
        "quorum.api",
        "quorum.client",
        "quorum.sync",
        "quorum.bench",
        "quorum.demo",
        "quorum.histories",
        "quorum.local_cluster",
        "quorum.redrive",
        "quorum.definitions",
        "quorum.spark",
    ),
    "quorum.bench": (
        "fifo",
        "quorum_selectors",
        "quorum",
        "quorum.v1",
        "quorum.client",
        "quorum.sync",
        "quorum.errors",
        "quorum.local_cluster",
        "quorum.spark",
    ),
    "quorum.pytest_plugin": ("quorum", "quorum.sync", "quorum.local_cluster"),
    "quorum.demo": (
        "quorum",
        "quorum.counts",
        "quorum.v1",
        "quorum.client",
        "quorum.sync",
        "quorum.errors",
        "quorum.local_cluster",
    ),
}

OWN = ("quorum", "fifo", "quorum_selectors", "pyspark_quorum")

IMPURE_TEXT = """
    asyncio concurrent ctypes datetime glob http io logging mmap multiprocessing os pathlib pickle queue random secrets
    select selectors shelve shutil signal socket ssl structlog subprocess sys tempfile threading time urllib uuid
    grpc pydantic pydantic_settings pysyncobj google
"""
IMPURE = frozenset(IMPURE_TEXT.split())
"""I/O, clocks, chance, threads: nothing of it in a machine, or members would part."""

PURE_EXCEPTIONS: dict[str, frozenset[str]] = {
    # the grammar is a file beside the module; it is read once, at import
    "quorum_selectors.jms": frozenset({"importlib", "pathlib"}),
    # sys.byteorder: what is written has to be the same bytes on every machine
    "fifo.codec": frozenset({"sys"}),
}
PURE = ("quorum_selectors", "fifo", "quorum.catalog")

ALL = [(name, imports_of(file)) for name, file in modules()]


def room_of(name: str) -> str | None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        room = ".".join(parts[:length])
        if room in ALLOWED:
            # `quorum` is the package's own front, not a roof for rooms nobody has named
            return None if room == "quorum" and length < len(parts) else room
    return None


def wrong(name: str, found: Import) -> str | None:
    """What is wrong with this import, None if nothing."""
    target = room_of(found.module)
    if target is None:
        inside = found.module.split(".")[0] in OWN
        return f"{found.place}: {found.module} is in no known room" if inside else None
    own = room_of(name)
    if own is None:
        return f"{found.place}: {name} is in no known room"
    if target != own and target not in ALLOWED[own]:
        return f"{found.place}: {own} must not import {target} ({found.module})"
    return None


def test_imports_run_downwards_only() -> None:
    assert [problem for name, imports in ALL for each in imports if (problem := wrong(name, each))] == []


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("fifo.queue_machine", "quorum.log"),
        ("quorum_selectors.jms", "fifo.commands"),
        ("quorum.log.writer", "quorum.node.member"),
        ("quorum.replication.group", "quorum.api.server"),
        ("quorum.catalog.machine", "quorum.log"),
        ("quorum.client.session.session", "quorum.node.member"),
        ("quorum.client.session.session", "fifo.commands"),
        ("quorum.spark.source", "quorum.node.member"),
        ("quorum.histories.judge", "quorum.spark.pipelines.verify"),
        ("quorum.api.server", "quorum.spark.source"),
        ("quorum.api.http.json_api", "quorum.client.admin.redrive"),
        ("quorum.api.server", "quorum.client.errors"),
        ("quorum.node.member", "quorum.api.hub.hub"),
        ("quorum.cellar.wine", "quorum.v1.queue_pb2"),
        ("quorum.node.member", "quorum.cellar.wine"),
    ],
)
def test_the_rule_would_notice(name: str, module: str) -> None:
    assert wrong(name, Import(module, ROOT / "x.py", 1, False)) is not None


def test_the_machines_and_the_language_touch_no_clock_chance_thread_or_file() -> None:
    problems = [
        f"{each.place}: {name} is pure and must not import {each.module}"
        for name, imports in ALL
        if name.startswith(PURE)
        for each in imports
        if (top := each.module.split(".")[0]) in IMPURE and top not in PURE_EXCEPTIONS.get(name, ())
    ]
    assert problems == []


def test_the_machines_import_a_listed_set_of_packages_only() -> None:
    allowed = {"quorum_selectors": {"lark", "numpy"}, "fifo": {"sortedcontainers", "numpy"}, "quorum": set()}
    problems = [
        f"{each.place}: {name} imports {each.module}"
        for name, imports in ALL
        if name.startswith(PURE)
        for each in imports
        if (top := each.module.split(".")[0]) not in sys.stdlib_module_names
        and top not in ("quorum", "fifo", "quorum_selectors")
        and top not in allowed[name.split(".")[0]]
    ]
    assert problems == []


FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"})
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "__import__"})


def dangers(source: str, file: Path) -> list[str]:
    """Where a module's text runs data as code, or could read a pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS
        ):
            found.append(f"{file.name}:{node.lineno}: {node.func.id}()")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and not _is_false(node.value):
            found.append(f"{file.name}:{node.value.lineno}: allow_pickle")
        found.extend(
            f"{file.name}:{node.lineno}: import {name}"  # type: ignore[attr-defined]
            for name in names
            if name.split(".")[0] in FORBIDDEN_MODULES or name == "pysyncobj.pickle"
        )
    return found


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


COMPILES = "fifo.frozen_dataclasses"
"""It compiles the `__init__` of classes, from the names of their fields, as the standard library does."""


def test_nothing_in_the_product_reads_pickles_or_runs_data_as_code() -> None:
    assert [
        danger
        for name, file in modules()
        if name != COMPILES
        for danger in dangers(file.read_text(encoding="utf-8"), file)
    ] == []


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "eval('1')", "exec(x)", "np.load(f, allow_pickle=True)"],
)
def test_the_search_for_dangers_would_notice(source: str) -> None:
    assert dangers(source, Path("x.py")) != []


EXTRA_OF = {
    "quorum.client.messages.tracing": "otel",
    "quorum.client": "bulk",
    "quorum.spark": "spark",
    "quorum.pytest_plugin": "dev",
}


def test_every_foreign_package_that_is_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed_always = {_distribution(line) for line in project["dependencies"]}
    extras = {
        extra: needed_always | {_distribution(line) for line in lines}
        for extra, lines in project["optional-dependencies"].items()
    }
    owners = packages_distributions()
    namespaces = {"google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos"}
    problems = []
    for name, imports in ALL:
        # a client needs no extra, but for Arrow and for spans; nothing else needs what only `spark` brings
        room = next((room for room in EXTRA_OF if name.startswith(room)), "")
        declared = extras[EXTRA_OF[room]] if room else extras["server"]
        for each in imports:
            top = each.module.split(".")[0]
            if each.typing_only or top in sys.stdlib_module_names or top in OWN:
                continue
            prefix = ".".join(each.module.split(".")[:2])
            needed = (
                {namespaces[prefix]}
                if prefix in namespaces
                else {_distribution(d) for d in owners.get(top, [])}
            )
            if not needed & declared:
                problems.append(f"{each.place}: {each.module} comes from {sorted(needed)}, no dependency")
    assert problems == []


def _distribution(requirement: str) -> str:
    name = requirement
    for end in "<>=!~;[ ":
        name = name.split(end)[0]
    return name.lower().replace("_", "-")


def imported_by(*names: str) -> set[str]:
    """The modules, and the packages that they are in, that a new process has after these imports."""
    script = f"import sys, {', '.join(names)}; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split())


NOT_AT_START = {
    "anyio",
    "argon2",
    "cryptography.x509",
    "h11",
    "httpx",
    "jsonschema",
    "jwt",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pyspark",
    "quorum.api.bulk.arrow_in",
    "quorum.api.bulk.arrow_messages",
    "quorum.api.bulk.arrow_out",
    "quorum.api.bulk.json_values",
    "quorum.api.http",
    "quorum.api.security.tokens",
    "quorum.bench",
    "quorum.bulk",
    "quorum.client",
    "quorum.demo",
    "quorum.histories",
    "quorum.node.offline.new_cluster",
    "quorum.spark",
    "quorum.sync",
    "starlette",
    "tomllib",
    "uvicorn",
    "yaml",
}
"""What a member imports when a call, or a line of its configuration, first needs it: most of the CPU time of its start
is that of imports."""


def test_a_member_starts_without_what_only_some_members_need() -> None:
    """The modules that `quorum node` imports before it serves, and the client beside them."""
    found = imported_by(
        "quorum.cli.main", "quorum.cli.commands.serve", "quorum.api.process", "quorum.api.security.reloading"
    )
    assert {"grpc", "numpy", "quorum.node.member"} <= found
    assert NOT_AT_START & found == set()


def test_a_client_starts_without_what_only_its_options_need() -> None:
    found = imported_by("quorum.client", "quorum.sync")
    assert {"opentelemetry", "pyarrow", "quorum.client.messages.tracing"} & found == set()


def test_the_help_of_the_command_does_without_what_single_commands_need() -> None:
    heavy = {"asyncio", "importlib.metadata", "rich", "ssl"}
    assert heavy & imported_by("quorum.cli.main") == set()


def test_a_local_cluster_does_without_the_command() -> None:
    found = imported_by("quorum.local_cluster.cluster", "quorum.local_cluster.certificate_files")
    assert {"click", "quorum.cli", "rich", "typer"} & found == set()


QUICK = ("fifo.", "quorum.catalog.", "quorum.node.", "quorum.api.")


def is_slow(source: str) -> bool:
    """Whether the standard library makes a frozen class with slots."""
    tree = ast.parse(source)
    standard = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "dataclasses"
        and any(alias.name == "dataclass" for alias in node.names)
        for node in ast.walk(tree)
    )
    return standard and any(
        ast.unparse(decorator) == "dataclass(frozen=True, slots=True)"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
    )


def test_a_member_makes_its_frozen_classes_quickly() -> None:
    """`from fifo.frozen_dataclasses import dataclass` is enough to make them so."""
    assert [
        name
        for name, file in modules()
        if name.startswith(QUICK) and is_slow(file.read_text(encoding="utf-8"))
    ] == []


def test_the_search_for_slow_classes_would_notice() -> None:
    made = "@dataclass(frozen=True, slots=True)\nclass Place:\n    group: int\n"
    assert is_slow(f"from dataclasses import dataclass\n{made}")
    assert not is_slow(f"from fifo.frozen_dataclasses import dataclass\n{made}")
