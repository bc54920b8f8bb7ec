"""The Raft thread: sockets, clock and disk around a Member, in real time.

One turn: wait for peers or for the API, step, pass the outputs on. Any exception stops the process (fail-stop): the
member's state may no longer match its log, and a restart recovers it from the log.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import structlog

from fifo.versions import UnknownVersion
from quorum.errors import DEFECT, TOO_OLD
from quorum.log import LogError, LogFailed, LogFull
from quorum.node.cluster.rollback_marks import RolledBack
from quorum.node.errors import StateUnreadable
from quorum.node.events import Input, Output
from quorum.node.member import Member
from quorum.node.wire.frames import Frame
from quorum.replication.network.connection import PeerNetwork

MAX_WAIT_S = 0.25
GATHER_S = 0.003
"""How long an idle member waits for the heartbeats of its other peers, once it has those of one."""
DISK_FAILED = 74
"""Exit status (EX_IOERR of sysexits.h): look at the disk before starting this member again."""
BEGINS_ANEW = 75
"""Exit status (EX_TEMPFAIL): start this member again; it then fetches everything from other members."""


def boottime_s() -> float:
    """Seconds on a clock that keeps running while the machine or the process is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Driver:
    """Runs one member until `stop`. `submit` may be called from any thread; `outputs` is called on the Raft thread."""

    def __init__(self, member: Member, network: PeerNetwork, outputs: Callable[[list[Output]], None]) -> None:
        self.member = member
        self._network = network
        self._outputs = outputs
        self._inputs: deque[Input] = deque()
        self._waits = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, items: Iterable[Input]) -> None:
        self._inputs.extend(items)
        if self._waits and not self._stopping:
            self._waits = False
            self._network.wake()

    def leave(self, item: Input) -> None:
        """As `submit`, but the thread does not wake for it: its next turn takes it, within MAX_WAIT_S."""
        self._inputs.append(item)

    def stop(self) -> None:
        self._stopping = True
        self._network.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self.member.log.sync()
        except BaseException as error:
            _fail_stop(error)

    def _turn(self) -> None:
        self._waits = True  # from here on submit wakes the network; what was submitted before is seen below
        wait = 0.0 if self._inputs else self.member.next_due_ms() / 1000 - boottime_s()
        frames = self._receive(max(0.0, min(wait, MAX_WAIT_S)))
        if frames and not self._inputs and self.member.may_gather(frames):
            self._gather(frames)
        self._waits = False
        inputs = []
        while self._inputs:
            inputs.append(self._inputs.popleft())
        outputs = self.member.step(int(boottime_s() * 1000), frames, inputs)
        self._network.flush()
        if outputs:
            self._outputs(outputs)

    def _gather(self, frames: list[Frame]) -> None:
        """Wait for the other frames of an idle member's step, until something arrives that cannot wait."""
        end_s = boottime_s() + GATHER_S
        while (left_s := end_s - boottime_s()) > 0:
            frames += self._receive(left_s)
            if self._inputs or not self.member.may_gather(frames):
                return

    def _receive(self, wait_s: float) -> list[Frame]:
        return [Frame(peer, kind, data) for peer, kind, data in self._network.poll(wait_s)]


def _fail_stop(error: BaseException) -> None:
    """Ends the process immediately: no peer or client is told anything more. A disk's failure is no defect of this
    program, so it is logged without a traceback."""
    logger = structlog.get_logger()
    if isinstance(error, LogError):
        what = "its log cannot be read"
        if isinstance(error, LogFailed | LogFull):
            what = "its disk has failed" if isinstance(error, LogFailed) else "its disk is full"
        logger.critical(f"member stops: {what}", error=str(error))
        os._exit(DISK_FAILED)
    if isinstance(error, RolledBack):
        logger.critical("member stops: started again, it takes everything from the others", error=str(error))
        os._exit(BEGINS_ANEW)
    if isinstance(error, StateUnreadable):
        logger.critical(
            "member stops: its state cannot be read, and no other member has it", error=str(error)
        )
        os._exit(DISK_FAILED)
    if isinstance(error, UnknownVersion):
        logger.critical("member stops: this release is too old for the cluster", error=str(error))
        os._exit(TOO_OLD)
    logger.critical("member stops", error=str(error), exc_info=error)
    os._exit(DEFECT)
