"""`quorum node`: configuration, logging, and then the member's process."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from quorum.cli.console import DEFECT, is_told
from quorum.config import load


def serve(file: Path | None, flags: Mapping[str, Any]) -> int:
    """Runs the member; the process's exit status. What an operator can put right is raised; a defect is
    logged with its traceback."""
    config = load(file, flags)
    config.read_secret()  # before anything is touched
    log_to_stderr(config.log_level)
    allow_open_files()
    try:
        from quorum.api.process import run

        return run(config)
    except Exception as error:
        if is_told(error):
            raise
        structlog.get_logger().critical("a defect of quorum itself", exc_info=error)
        return DEFECT


def allow_open_files() -> None:
    """As many as the system allows: a member has one open for each segment of its log, and one for each session."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def log_to_stderr(level: str) -> None:
    """One line an event: time (UTC), level, event, its fields. Colours on a terminal only."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                sort_keys=False,
                pad_event_to=0,
                exception_formatter=structlog.dev.plain_traceback,  # the default shows local variables, secrets too
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
