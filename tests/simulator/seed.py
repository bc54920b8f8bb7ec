"""One seed, from its beginning to its end: what stands in the place of chance, of logs and of the product's parts."""

from __future__ import annotations

import logging
import random
import traceback
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from quorum.histories import HistoryError
from simulator.rules.rules import Broken
from simulator.world import START_MS, Build, World

BROKEN_PARTS = Path(__file__).parent / "broken"


@contextmanager
def prepared(seed: int, build: Build) -> Iterator[list[Any]]:
    """The modules that draw from chance of their own draw from the seed, and logs are kept, not printed."""
    chance = random.Random(f"{seed} clients")
    secrets = types.SimpleNamespace(
        token_bytes=chance.randbytes, token_hex=lambda n: chance.randbytes(n).hex()
    )
    patches = {
        "quorum.client.session.session.random": chance,
        "quorum.client.session.stream_state.secrets": secrets,
        "quorum.client.client.secrets": secrets,
        "quorum.api.services.admin_service._resident_bytes": lambda: 0,
        **build.patches,
    }
    with ExitStack() as stack:
        logging.disable(logging.CRITICAL)  # the library's
        stack.callback(logging.disable, logging.NOTSET)
        lines = stack.enter_context(structlog.testing.capture_logs())
        for name, value in patches.items():
            stack.enter_context(mock.patch(name, value))
        yield lines


def run(seed: int, build: Build | None = None) -> World:
    """Runs one seed to its end; raises Broken with its story."""
    build = build or Build()
    with prepared(seed, build) as lines:
        world = World(seed, build)
        try:
            with world.ledger.watching(), world.rules.hand_outs.watching():
                world.run()
            wrong = [line for line in lines if line["log_level"] == "critical"]
            if wrong:
                raise Broken(f"said by a node: {wrong[0]}")
        except Exception as error:
            if fails_by_itself(error):
                raise
            story = "\n  ".join(world.story)
            at = world.now_ms - START_MS
            what = repr(error) + _history_so_far(world, error)
            broken = Broken(f"seed {seed}, at {at} ms, {world.phase}: {what}\n  {story}")
            broken.world = world
            raise broken from error
        finally:
            world.bury()
    return world


def fails_by_itself(error: BaseException) -> bool:
    """Whether a broken build has ended by a mistake of its own, such as a name that the product does not have any more:
    then nothing was noticed."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = list(traceback.walk_tb(error.__traceback__))
    is_mistake = isinstance(error, AttributeError | NameError | TypeError)
    return is_mistake and bool(frames) and Path(frames[-1][0].f_code.co_filename).parent == BROKEN_PARTS


def _history_so_far(world: World, error: Exception) -> str:
    """What else was wrong when a run broke: what stops a run may come long after its cause."""
    try:
        world.rules.judge_history()
    except (Broken, HistoryError) as found:
        return "" if str(found) == str(error) else f"; what clients were told: {found}"
    return ""
