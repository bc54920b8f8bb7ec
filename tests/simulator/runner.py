"""Many seeds on all cores, and the search for broken builds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice, pairwise
from multiprocessing import get_context
from statistics import median_high

from simulator.broken.canaries import CANARIES, CATCHES, MOST_SEEDS, Canary
from simulator.report import Outcome, Report
from simulator.rules.rules import Broken
from simulator.seed import run
from simulator.world import START_MS, Build

Say = Callable[[str], None]
NOTICED_LENGTH = 160
"""Of a line that says how a broken build was noticed."""


def one(seed: int, canary: str = "", build: Build | None = None) -> Outcome:
    """Runs a seed of the product, of the broken build of this name, or of this build."""
    start = time.process_time()
    build = build or next((each.build() for each in CANARIES if each.name == canary), None)
    assert build is not None or not canary, canary
    broken = ""
    try:
        world = run(seed, build)
    except Broken as error:
        if error.world is None:  # a broken build that fails by a mistake of its own
            raise
        broken, world = str(error), error.world
    return Outcome(
        seed,
        world.digest,
        broken,
        world.rules.counts,
        world.faults.landed,
        world.faults.coverage,
        time.process_time() - start,
        world.now_ms - START_MS,
        world.events,
    )


def many(jobs: int, work: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Outcome]]:
    """(canary, outcome) as they come. Nothing is begun that nobody asks for: to stop asking is to stop."""
    if jobs == 1:
        for seed, canary in work:
            yield canary, one(seed, canary)
        return
    waiting = iter(work)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: dict[Future[Outcome], str] = {}

        def feed(count: int) -> None:
            for seed, canary in islice(waiting, count):
                running[pool.submit(one, seed, canary)] = canary

        feed(2 * jobs)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: each.result().seed):
                canary = running.pop(future)
                yield canary, future.result()
                feed(1)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def simulate(first: int, count: int, jobs: int, say: Say, canary: str = "") -> int:
    """Runs the seeds, of the product or of a broken build; 1 if one is broken, or all together have shown nothing."""
    say(f"seeds {first} to {first + count - 1} on {jobs} cores" + (f", with {canary}" if canary else ""))
    start = time.monotonic()
    report = Report()
    for _, outcome in many(jobs, ((seed, canary) for seed in range(first, first + count))):
        report.outcomes.append(outcome)
        if outcome.broken:
            say(f"BROKEN {outcome.broken}\n  again: make simulate SEEDS=1 FIRST_SEED={outcome.seed}")
        elif count <= 20:
            say(f"seed {outcome.seed}: digest {outcome.digest}, {outcome.events:,} events")
        elif len(report.outcomes) % 50 == 0:
            say(f"{len(report.outcomes)} seeds in {time.monotonic() - start:.0f} s")
    report.outcomes.sort(key=lambda outcome: outcome.seed)
    say(report.text())
    empty = report.emptiness()
    for missing in empty:
        say(f"an empty proof: {missing}")
    say(report.summary(time.monotonic() - start))
    return 1 if report.broken or empty else 0


def catch(
    canaries: Iterable[Canary], first: int, limit: int, jobs: int, say: Say, catches: int = CATCHES
) -> int:
    """Looks for the first seeds that catch each, and ends with a table of them; 1 if one is not caught so often, or too
    seldom."""
    missed = []
    rows = [("broken build", "seeds", "median", "promise", "noticed by")]
    for canary in canaries:
        if canary.scene:
            rows.append((canary.name, "none", "-", canary.promise, f"not by seeds: {canary.scene}"))
            continue
        caught, tried = _first_catches(canary, first, limit, jobs, catches)
        seeds = [outcome.seed for outcome in caught]
        median = _median_gap(first, seeds)
        if len(caught) < catches or median > MOST_SEEDS:
            missed.append(canary.name)
            say(f"MISSED {canary.name}: of {tried} seeds from {first} on only {seeds} found something wrong")
        if caught:
            what = _noticed(caught[0].broken)
            say(f"caught {canary.name} by seeds {seeds}: {what}")
            rows.append((canary.name, ", ".join(map(str, seeds)), str(median), canary.promise, what))
        else:
            rows.append((canary.name, "none", "-", canary.promise, f"nobody, in {tried} seeds"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        say("  " + "  ".join(cells) + f"  {row[4]}")
    number = len(rows) - 1
    say(f"{number} broken builds, {number - len(missed)} caught" + (f"; missed: {missed}" if missed else ""))
    return 1 if missed else 0


def _first_catches(
    canary: Canary, first: int, limit: int, jobs: int, catches: int
) -> tuple[list[Outcome], int]:
    """The outcomes of the first so many seeds that catch it, and how many seeds that took. Seeds run at the same time
    end in any order; what counts is their number."""
    outcomes: dict[int, Outcome] = {}
    caught: list[Outcome] = []
    seed = first
    for _, outcome in many(jobs, ((each, canary.name) for each in range(first, first + limit))):
        outcomes[outcome.seed] = outcome
        while seed in outcomes and len(caught) < catches:
            caught += [outcomes[seed]] if outcomes[seed].broken else []
            seed += 1
        if len(caught) == catches:
            break
    return caught, seed - first


def _median_gap(first: int, seeds: list[int]) -> int:
    """How many seeds it takes until one catches it."""
    if not seeds:
        return 0
    return median_high(b - a for a, b in pairwise([first - 1, *seeds]))


def _noticed(broken: str) -> str:
    """What a run said that was broken, without its story, as far as a line holds it."""
    text = broken.splitlines()[0]
    return text if len(text) <= NOTICED_LENGTH else text[:NOTICED_LENGTH] + "..."
