"""`python -m simulator`: see docs/simulation.md."""

from __future__ import annotations

import argparse
import sys

from simulator.broken.canaries import CANARIES, LIMIT
from simulator.runner import catch, cores, simulate
from support.raft import fuzz as raft_fuzz
from support.raft.ablations import RULES


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "simulation", description="The whole cluster in one thread, from one seed."
    )
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes at a time")
    parser.add_argument(
        "--canaries", nargs="?", const="all", help="look for broken builds instead: all, or a part of a name"
    )
    parser.add_argument("--build", default="", help="run this broken build instead of the product")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(text, flush=True)

    if given.canaries is None:
        return simulate(given.first, given.seeds, given.jobs, say, given.build)
    part = "" if given.canaries in ("all", "1") else given.canaries
    chosen = [each for each in CANARIES if part in each.name]
    rules = [each for each in RULES if part in each.name]
    if not chosen and not rules:
        known = [each.name for each in (*CANARIES, *RULES)]
        parser.error(f"no broken build has {part!r} in its name; there are {known}")
    missed = raft_fuzz.catch(rules, given.first, say)
    status = catch(chosen, given.first, LIMIT, given.jobs, say) if chosen else 0
    return 1 if missed else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
