"""One bench of two checkouts: `python tests/processes/bench_in_turn.py --pairs 9 OTHER MODE [OPTION ...]`.

A figure of a shared machine changes from one quarter of an hour to the next, so two versions are compared only within
pairs. Each pair runs `quorum bench MODE OPTION ... --json` of the checkout at OTHER and of this one, one directly after
the other, with the environments in their `.venv`; every second pair starts with this one. Nothing else should run
beside it. For each figure that both print, the report has the medians and the ratio of this checkout to the other one:
the median over the pairs, the smallest and the largest. With `--with=OPTION`, the bench of this checkout gets one more
option; then OTHER may be this checkout, to compare a cluster with and without it. The exit status is 0 if all benches
ended well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

THIS = Path(__file__).resolve().parents[2]
SETTINGS = {
    "members",
    "body_bytes",
    "batch",
    "window",
    "producers",
    "consumers",
    "rate",
    "seconds",
    "rounds",
    "queues",
    "linger_ms",
}
"""Figures of the report that say what was asked for, and not what was measured."""


def figures(checkout: Path, arguments: list[str]) -> dict[str, float]:
    """What one bench measured, by name. Of a list, such as the memory of each member, the sum."""
    program = sys.executable if checkout == THIS else checkout / ".venv/bin/python"
    bench = subprocess.run(
        [program, "-m", "quorum", "bench", *arguments, "--json"],
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report = json.loads(bench.stdout.splitlines()[-1])
    measured = {name: sum(value) if isinstance(value, list) else value for name, value in report.items()}
    return {
        name: float(value)
        for name, value in measured.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in SETTINGS
    }


def pairs_of(
    other: Path, arguments: list[str], pairs: int, options: list[str]
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """The figures of the other checkout and of this one, for each pair. options: only for this one."""
    measured = []
    for pair in range(pairs):
        began = time.monotonic()
        sides = [(other, arguments), (THIS, [*arguments, *options])]
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        found = {side: figures(*sides[side]) for side in order}
        measured.append((found[0], found[1]))
        print(f"pair {pair + 1} of {pairs}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return measured


def report(measured: list[tuple[dict[str, float], dict[str, float]]]) -> list[str]:
    """A line for each figure that both checkouts printed in every pair. A ratio to zero is left out."""
    lines = [f"{'':32}{'other':>14}{'this':>14}{'ratio':>9}   smallest to largest"]
    common = set.intersection(*(set(figures) for pair in measured for figures in pair))
    for name in (name for name in measured[0][1] if name in common):
        others, these = [pair[0][name] for pair in measured], [pair[1][name] for pair in measured]
        line = f"{name:32}{statistics.median(others):14,.3f}{statistics.median(these):14,.3f}"
        if all(others):
            ratios = [this / other for other, this in zip(others, these, strict=True)]
            line += f"{statistics.median(ratios):9.3f}   {min(ratios):.3f} to {max(ratios):.3f}"
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compares the bench of this checkout with another one's, in pairs."
    )
    parser.add_argument("other", type=Path, help="a checkout with an environment in .venv (make install)")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument(
        "--with", dest="options", action="append", default=[], help="an option only for this checkout's bench"
    )
    parser.add_argument("bench", nargs=argparse.REMAINDER, help="the mode and the options of 'quorum bench'")
    arguments = parser.parse_args()
    print(
        "\n".join(
            report(pairs_of(arguments.other.resolve(), arguments.bench, arguments.pairs, arguments.options))
        )
    )


if __name__ == "__main__":
    main()
