"""What commands that start Spark have in common: where its tasks run, and Spark's own settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from quorum.cli.console import Complaint

LEAST_MB = 512
"""Spark itself refuses less than 450."""

MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER",
        help="where tasks run: spark://HOST:PORT of a cluster (docs/spark.md says what its machines need); "
        "without it, here",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="a setting of Spark, such as spark.executor.memory=2g; several may be given",
    ),
]


def settings_of(given: Sequence[str] | None) -> dict[str, str]:
    """The settings of --conf, by name. Raises Complaint."""
    found: dict[str, str] = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not sign or not name.startswith("spark."):
            raise Complaint(f"--conf {each!r}; allowed: spark.NAME=VALUE")
        if name == "spark.master":
            raise Complaint(f"--conf {each!r}; that is what --master is for")
        found[name] = value
    return found


def heap(text: str) -> str:
    """A size as Java takes it. Raises Complaint."""
    match = re.fullmatch(r"(\d{1,6})([mMgG])", text)
    if match is None or int(match[1]) * (1024 if match[2] in "gG" else 1) < LEAST_MB:
        raise Complaint(f"--memory {text!r}; allowed: {LEAST_MB}m and more, written as 800m or 4g")
    return text.lower()
