"""`quorum node`: configuration, logging, and then the member's process."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import structlog

from quorum.cli.console import is_user_facing
from quorum.config import NodeConfig, examine, load
from quorum.errors import DEFECT, ConfigError


def serve(file: Path | None, flags: Mapping[str, Any]) -> int:
    """Run the member and return the process's exit status. Errors that an operator can correct are raised; a defect is
    logged with its traceback."""
    config = _checked(file, flags)
    set_level = log_to_stderr(config.log_level, config.log_format)
    allow_open_files()
    gc.disable()  # imports make hardly any garbage; `run` enables it again
    set_up_libraries()
    try:
        from quorum.api.process import run
        from quorum.api.security.reloading import Source

        return run(config, source=Source(lambda: load(file, flags), set_level))
    except Exception as error:
        if is_user_facing(error):
            raise
        structlog.get_logger().critical("a defect of quorum itself", exc_info=error)
        return DEFECT


def _checked(file: Path | None, flags: Mapping[str, Any]) -> NodeConfig:
    """The configuration. ConfigError if it is not right, also with what is wrong in the files that it names, so that
    an operator corrects everything at once."""
    examined = examine(file, flags)
    if examined.config is None or examined.wrong:
        from quorum.api.security.named_files import wrong_files

        raise ConfigError("\n".join((*examined.wrong, *wrong_files(examined))))
    return examined.config


def set_up_libraries() -> None:
    """Settings that libraries read from the environment when they are imported. A variable that the operator has set
    counts."""
    # gRPC writes lines of its own to stderr, for each handshake that a stranger fails.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # NumPy starts a thread for linear algebra on each core. They are busy for 0.1 s, and a member never uses them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def allow_open_files() -> None:
    """Raise the limit of open files to the system's maximum: a member needs one for each segment and each session."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _LowestLevel:
    """Drops the events below a level, which can be changed: a logger that is in use keeps the configuration that it
    was made with."""

    def __init__(self, level: str) -> None:
        self.set(level)

    def set(self, level: str) -> None:
        self._lowest = getattr(logging, level.upper())

    def __call__(
        self, _logger: Any, level: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if getattr(logging, level.upper()) < self._lowest:
            raise structlog.DropEvent
        return event


class _Escaped:
    """A value that is written as Python writes it, with escapes."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)


def _escaped(_logger: Any, _level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Strangers choose some values, such as the name of a log-in. A terminal that shows the log would obey some
    characters."""
    return {
        key: _Escaped(value)
        if isinstance(value, str) and key != "stack" and not value.isprintable()
        else value
        for key, value in event.items()
    }


def log_to_stderr(level: str, line_format: Literal["text", "json"] = "text") -> Callable[[str], None]:
    """Log one line for each event to stderr: time (UTC), level, event, its fields. Colours only on a terminal. json:
    each line is an object, and a traceback is its field `exception`. The result changes the level."""
    lowest = _LowestLevel(level)
    as_text: list[structlog.typing.Processor] = [
        _escaped,
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            sort_keys=False,
            pad_event_to=0,
            exception_formatter=structlog.dev.plain_traceback,  # the default shows local variables, secrets too
        ),
    ]
    as_json: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=[
            lowest,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *(as_json if line_format == "json" else as_text),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(_LogFile()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_OfLibraries(logging.ERROR)])
    return lowest.set


class _LogFile:
    """Standard error, as far as it can be written. A line that cannot be written is dropped: a full disk below the log,
    or a reader that has ended, must not end the member."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


class _OfLibraries(logging.Handler):
    """Errors that libraries log go to the member's log, in its format. Warnings do not: each connection of a stranger
    could make one. Nor does what gRPC says of a header that is no text: it may be a password."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("grpc.") and str(record.msg).startswith("Invalid encoding"):
            return
        structlog.get_logger().error(
            "error in a library", library=record.name, reason=record.getMessage(), exc_info=record.exc_info
        )
