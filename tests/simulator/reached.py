"""`python -m simulator.reached SEED ...`: the product's modules of which these seeds call no function.

In a process of its own: every function of the product is compiled with a first statement that notes its module, so the
product must not have been imported before. (A profile function would cost five times as much.)
"""

from __future__ import annotations

import ast
import builtins
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from support.repository import ROOT

FOLDERS = tuple(ROOT / folder for folder in ("quorum", "fifo", "selectors/quorum_selectors"))
NOTED = "noted_modules"
"""The name, among the builtins, of the set that the functions write to."""


def is_product(path: Path) -> bool:
    return (
        path.suffix == ".py" and "v1" not in path.parts and any(path.is_relative_to(each) for each in FOLDERS)
    )


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


class Noting(SourceFileLoader):
    """Compiles a module whose functions note that they were called."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        for function in functions(tree):
            note = ast.parse(f"{NOTED}.add({self.path!r})").body[0]
            for node in ast.walk(note):
                ast.copy_location(node, function.body[0])
            function.body.insert(ast.get_docstring(function, clean=False) is not None, note)
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code


class Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and is_product(Path(spec.origin)):
            spec.loader = Noting(fullname, spec.origin)
        return spec


def main(seeds: list[int]) -> None:
    assert not any(name.partition(".")[0] in ("quorum", "fifo", "quorum_selectors") for name in sys.modules)
    noted: set[str] = set()
    setattr(builtins, NOTED, noted)
    sys.meta_path.insert(0, Finder())
    from simulator.seed import run  # the product is imported here, not before

    noted.clear()
    for seed in seeds:
        run(seed)
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            if is_product(path) and str(path) not in noted and functions(ast.parse(path.read_bytes())):
                print(path.relative_to(ROOT).as_posix())


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]])
