"""What is written of administration, refused requests and failed log-ins: to the log, and to the audit file if there is
one (audit_file.py)."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from contextvars import ContextVar

import structlog

from quorum.api import status
from quorum.api.security.audit_file import AuditFile

REFUSALS_A_MINUTE = 100
"""Lines about failed log-ins and refused requests. More are only counted, because strangers cause them."""
MAX_OUTCOME = 500
MAX_STRANGER, MAX_STRANGER_OUTCOME = 64, 200
"""Characters of a name and of a reason that strangers cause, so that they cannot soon push out older lines."""
NOT_PLAIN = re.compile("[^ -~]")
"""What the audit file writes with up to 12 characters."""
DONE, NO_ANSWER = "done", "ended without an answer"

_BEGUN: ContextVar[dict[str, str] | None] = ContextVar("begun", default=None)
"""The administrative request of the running task, as its first line has it."""


class Audit:
    """One per member."""

    def __init__(self, file: AuditFile | None = None) -> None:
        self._file = file
        self._process, self._numbers = secrets.token_hex(4), itertools.count(1)
        self._minute = self._in_minute = self._left_out = 0

    def begin(self, call: str, user: str, peer: str, target: str, client_call: str = "") -> None:
        """An administrative request of the running task begins. Later ones of the same task, the parts of a stream,
        belong to it. StatusError if that cannot be written; then the request must not begin.

        client_call: the client's own id of its call; empty if it sent none. The tries of one call have the same id, if
        the client is honest."""
        if _BEGUN.get() is not None:
            return
        request = f"{self._process}-{next(self._numbers)}"
        own = {"client_call": client_call} if client_call else {}
        fields = {"request": request, **own, "call": call, "user": user, "peer": peer, "target": target}
        try:
            self._write(logging.INFO, "administration", **fields, outcome="begun")
        except OSError as error:
            _cannot_be_written(error)
            text = f"the audit file of this member cannot be written: {error.strerror}"
            raise status.StatusError(status.make(status.Code.UNAVAILABLE, "audit_failed", text)) from error
        _BEGUN.set(fields)

    def finish(self, outcome: str) -> None:
        """The running task has done what it began, if it began anything. outcome: DONE, or why not."""
        fields = _BEGUN.get()
        if fields is not None:
            _BEGUN.set(None)
            self._try(logging.INFO, "administration", **fields, outcome=outcome[:MAX_OUTCOME])

    def refused(self, call: str, user: str, peer: str, target: str, why: str) -> None:
        self._sparse("refused", call=call, user=user, peer=peer, target=target, outcome=why[:MAX_OUTCOME])

    def log_in_failed(self, user: str, peer: str, why: str) -> None:
        outcome = NOT_PLAIN.sub("?", why[:MAX_STRANGER_OUTCOME])  # it may have a part of a token
        self._sparse("log-in failed", user=user[:MAX_STRANGER], peer=peer, outcome=outcome)

    def _sparse(self, event: str, **fields: str) -> None:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._in_minute = minute, 0
        self._in_minute += 1
        if self._in_minute > REFUSALS_A_MINUTE:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        self._try(logging.WARNING, event, **fields, **({"left_out": left_out} if left_out else {}))

    def _try(self, level: int, event: str, **fields: str | int) -> None:
        try:
            self._write(level, event, **fields)
        except OSError as error:
            structlog.get_logger().log(level, event, **fields)
            _cannot_be_written(error)

    def _write(self, level: int, event: str, **fields: str | int) -> None:
        if self._file is None:
            structlog.get_logger().log(level, event, **fields)
        else:
            digest = self._file.write(event, **fields)
            structlog.get_logger().log(level, event, **fields, audit=digest[:16])


def _cannot_be_written(error: OSError) -> None:
    structlog.get_logger().error("the audit file cannot be written", error=error.strerror)
