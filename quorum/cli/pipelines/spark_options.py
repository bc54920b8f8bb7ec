"""Options of all commands that start Spark: where its tasks run, and Spark's own settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from quorum.cli.console import CliError

LEAST_MB = 512
"""Spark itself refuses less than 450."""

MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER",
        help="Spark cluster for the tasks, spark://HOST:PORT, whose machines have the same Python, at the same path, "
        "with this package; default: this machine",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="a Spark setting, such as spark.executor.memory=2g; may be repeated",
    ),
]


def settings_of(given: Sequence[str] | None) -> dict[str, str]:
    """The settings of --conf by name. CliError if one has the wrong form."""
    found: dict[str, str] = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not sign or not name.startswith("spark."):
            raise CliError(f"--conf {each!r}; allowed: spark.NAME=VALUE")
        if name == "spark.master":
            raise CliError(f"--conf {each!r}: use --master for this setting")
        found[name] = value
    return found


def heap(text: str) -> str:
    """A heap size in Java's form. CliError if it has another form or is too small."""
    match = re.fullmatch(r"(\d{1,6})([mMgG])", text)
    if match is None or int(match[1]) * (1024 if match[2] in "gG" else 1) < LEAST_MB:
        raise CliError(f"--memory {text!r}; allowed: {LEAST_MB}m and more, written as 800m or 4g")
    return text.lower()
