"""What commands that start Spark have in common: where its tasks run, and Spark's own settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from quorum.cli.console import Complaint

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
