"""`quorum certificates create`: an authority and certificates for development and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorum.errors import naming
from quorum.local_cluster.certificate_files import AUTHORITY_DAYS, write_certificates

app = typer.Typer(help="Certificates for development and tests.", no_args_is_help=True)


@app.command()
def create(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="hosts, by name or IP address; each gets NAME.pem and NAME.key"),
    ],
    directory: Annotated[Path, typer.Option("--dir", help="where the files are written")] = Path(
        "certificates"
    ),
    days: Annotated[int, typer.Option(min=1, max=AUTHORITY_DAYS, help="days that they are valid")] = 365,
) -> None:
    """Create certificates for hosts and clients, and an authority (ca.pem, ca.key) if the directory has none.

    With ca.key, anybody can make more of them. For production, use the authority of your organisation."""
    with naming(directory):
        lines = list(write_certificates(directory, names, days))
    for line in lines:
        print(line)
