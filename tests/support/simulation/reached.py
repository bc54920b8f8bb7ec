"""`python -m support.simulation.reached SEED ...`: the product's modules of which these seeds call no function.

In a process of its own: what other code has left behind there (caches, generators) would change what is called.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from types import FrameType

from support.repository import ROOT
from support.simulation.seed import run

FOLDERS = ("quorum", "fifo", "selectors/quorum_selectors")


def main(seeds: list[int]) -> None:
    reached: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if (
            event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        ):  # a function, not a module's own code
            reached.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        for seed in seeds:
            run(seed)
    finally:
        sys.setprofile(None)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "v1" not in path.parts and str(path) not in reached and _has_functions(path):
                print(path.relative_to(ROOT).as_posix())


def _has_functions(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]])
