"""Gives a member whose log is missing or cannot be opened a new one, quarantined (quorum/replication/quarantine.py).

An unreadable log is set aside and never removed: it may be the only copy of some data. The new log is complete, marks
included, before it takes the place of the old one. So a crash at any moment leaves either a log that cannot be opened,
no log, or a log that says that it is quarantined.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import structlog

from quorum.log import Log, LogDamaged
from quorum.log.maintenance.examining import Remedy
from quorum.log.segment_files.manifest import MANIFEST
from quorum.node.replica.bootstrap import quarantine

LOG = "log"
_NEW = "log.new"


def open_log(data_dir: Path, *, groups: int, has_begun: bool, has_others: bool, **options: Any) -> Log:
    """Opens and returns the member's log. has_begun: a process of this member has served from this directory before.

    Raises what Log.open raises; LogDamaged only if no other member can have the lost data.
    """
    directory = data_dir / LOG
    logger = structlog.get_logger()
    if has_begun and not (directory / MANIFEST).exists() and not _has_records(directory):
        if not has_others:
            raise LogDamaged()
        logger.error("log missing", directory=str(directory))
        begin_again(data_dir, groups, **options)
    try:
        log = Log.open(directory, **options)
    except LogDamaged as error:
        if not has_others:
            raise
        logger.error("log damaged beyond repair on this member", error=str(error))
        begin_again(data_dir, groups, **options)
        return Log.open(directory, **options)
    for damage in log.block_damages:
        logger.error("file damaged", finding=f"{damage}; {Remedy.BLOCK.value}")
    return log


def begin_again(data_dir: Path, groups: int, **options: Any) -> None:
    """Puts a new, quarantined log in the place of the one here, which is set aside."""
    made = data_dir / _NEW
    if made.exists():
        shutil.rmtree(made)
    log = Log.open(made, **options)
    try:
        for group in range(groups):
            quarantine(log, group)
        log.sync()
    finally:
        log.close()
    old = data_dir / LOG
    if old.exists():
        number = 1
        while (aside := data_dir / f"log.damaged-{number}").exists():
            number += 1
        os.rename(old, aside)
        structlog.get_logger().error("log set aside", directory=str(aside))
    os.rename(made, old)
    handle = os.open(data_dir, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _has_records(directory: Path) -> bool:
    """Whether the directory has files that opening will reject by itself."""
    return any(directory.glob("segment-*.log"))
