"""Names of fields: what identifiers stand for, what a queue keeps; and what the package may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quorum_selectors
from quorum_selectors import jms, known_fields, properties
from quorum_selectors.errors import FieldNameError
from quorum_selectors.expression import field_names
from quorum_selectors.known_fields import DEFAULT_FIELD_NAMES, resolve_field_names


def test_the_fields_of_an_expression_are_sorted_and_named_once() -> None:
    tree = jms.parse(
        "b = 1 AND (a > b OR JMSType LIKE 'x%') AND JMSDeliveryMode = 'PERSISTENT' AND -c + 1 < JMSPriority"
    )
    assert field_names(tree) == (
        "application-properties.a",
        "application-properties.b",
        "application-properties.c",
        "header.durable",
        "header.priority",
        "properties.subject",
    )
    assert field_names(jms.parse("")) == ()
    assert field_names(properties.parse({"to": "x", "subject": None}, {"k": 1})) == (
        "application-properties.k",
        "properties.to",
    )


@pytest.mark.parametrize(
    ("names", "kept", "not_kept"),
    [
        (["*"], ["application-properties.x"], ["header.priority", "properties.to"]),
        (["colour"], ["application-properties.colour"], ["application-properties.x", "properties.to"]),
        (["application-properties.colour"], ["application-properties.colour"], ["application-properties.x"]),
        (["header.durable", "properties.message-id"], ["header.durable", "properties.message-id"],
         ["header.priority", "application-properties.durable"]),
        (["headers"], ["application-properties.headers"], ["header.priority"]),
        (list(DEFAULT_FIELD_NAMES), ["header.priority", "header.durable", "properties.subject",
         "properties.group-id", "application-properties.any"], ["properties.to"]),
        ([], [], ["application-properties.x", "header.priority"]),
    ],
)  # fmt: skip
def test_a_queue_keeps_what_its_field_names_list(
    names: list[str], kept: list[str], not_kept: list[str]
) -> None:
    fields = resolve_field_names(names)
    assert all(fields.keeps(key) for key in kept)
    assert not any(fields.keeps(key) for key in not_kept)
    assert fields.first_not_kept(kept) is None
    assert fields.first_not_kept([*kept, *not_kept]) == not_kept[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("header.prioriy", "did you mean 'header.priority'"),
        ("properties.message_id", "did you mean 'properties.message-id'"),
        ("properties.correlationid", "did you mean 'properties.correlation-id'"),
        ("header.delivery-count", "unknown filter field"),
        ("header.ttl", "unknown filter field"),
        ("properties.", "unknown filter field"),
        ("", "empty"),
        ("x" * 256, "255 bytes"),
    ],
)
def test_an_unknown_field_name_is_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(FieldNameError, match=message):
        resolve_field_names(["*", name])


def test_too_many_field_names_are_refused() -> None:
    resolve_field_names([f"k{i}" for i in range(64)])
    with pytest.raises(FieldNameError, match="at most 64"):
        resolve_field_names([f"k{i}" for i in range(65)])


def test_every_jms_header_is_a_well_known_field() -> None:
    assert set(known_fields.JMS_HEADERS.values()) <= set(known_fields.WELL_KNOWN)
    assert resolve_field_names(known_fields.WELL_KNOWN).keys == tuple(sorted(known_fields.WELL_KNOWN))


# ---- purity

PACKAGE = Path(quorum_selectors.__file__).parent

ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "difflib",
    "functools",
    "itertools",
    "lark",
    "math",
    "numpy",
    "operator",
    "quorum_selectors",
    "re",
    "struct",
    "typing",
    "unicodedata",
    "zlib",
}


def test_the_package_imports_nothing_that_reads_a_clock_or_does_input_and_output() -> None:
    modules = sorted(PACKAGE.glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= ALLOWED, f"{module.name} imports {names}"


def test_nothing_is_evaluated_pickled_opened_or_printed() -> None:
    forbidden = {"eval", "exec", "open", "print", "input", "compile", "__import__", "hash", "id"}
    for module in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, f"{module.name}:{node.lineno} calls {node.func.id}"


def test_a_state_machine_that_evaluates_never_loads_the_parser() -> None:
    """In a fresh interpreter, also under another hash seed: the same bytes."""
    program = (
        "import sys\n"
        "from quorum_selectors import canonical, columns, compiled, evaluate, properties, known_fields\n"
        "assert 'lark' not in sys.modules\n"
        "from quorum_selectors import jms\n"
        "print(canonical.encode(jms.parse(\"b IN ('x','y','z') OR a = 1 AND c LIKE 'x_%'\")).hex())\n"
        "print(columns.encode([{'a': 1, 'b': 'x'}, {'c': 2.5}, {'b': True}]).hex())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(PACKAGE.parent)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
