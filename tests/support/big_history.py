"""A long history, clean and with each kind of violation planted in it, judged by the command as its users start it.

    PYTHONPATH=tests python -m support.big_history --operations 5000000 --memory 2g

Three operations a message: published one by one, delivered and settled one by one, which is the longest form a history
can have. Prints for each run what was found, the time, and the most memory that Java took; fails if it is not what was
planted. Files go to TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PRODUCERS, CONSUMERS = 8, 6
STEP_US = 40
"""Between two messages."""
AROUND = 1_000
"""Messages whose publish and settlement are written at a time: records of a history come in no exact order."""
POLL_S = 0.2

Record = dict[str, Any]


def clean(messages: int) -> Iterator[str]:
    """Records of a queue `orders`: sequence s is number s // PRODUCERS of producer s % PRODUCERS."""
    for first in range(1, messages + 1, AROUND):
        block = range(first, min(first + AROUND, messages + 1))
        for s in block:
            at = s * STEP_US
            yield (
                f'{{"op":"publish","queue":"orders","producer":"p{s % PRODUCERS}","number":{s // PRODUCERS},'
                f'"invoked_us":{at},"returned_us":{at + 30},"outcome":"confirmed"}}\n'
            )
        for s in block:
            yield (
                f'{{"op":"deliver","queue":"orders","consumer":"c{s % CONSUMERS}/1","sequence":{s},'
                f'"producer":"p{s % PRODUCERS}","number":{s // PRODUCERS},"returned_us":{s * STEP_US + 5_000}}}\n'
            )
        for s in block:
            at = s * STEP_US + 9_000
            yield (
                f'{{"op":"settle","queue":"orders","consumer":"c{s % CONSUMERS}/1","sequence":{s},'
                f'"invoked_us":{at},"returned_us":{at + 900},"outcome":"ok"}}\n'
            )
    yield '{"op":"left","queue":"orders","count":0}\n'


def planted(messages: int) -> dict[str, list[Record]]:
    """By kind, records that make the clean history one with a single violation of that kind."""
    s = messages // 2
    at = s * STEP_US
    message = {"queue": "orders", "producer": f"p{s % PRODUCERS}", "number": s // PRODUCERS}
    publish = {"op": "publish", "queue": "orders", "outcome": "confirmed"}

    def settled(sequence: int, consumer: str, start: int) -> Record:
        return {
            "op": "settle",
            "queue": "orders",
            "consumer": consumer,
            "sequence": sequence,
            "invoked_us": start,
            "returned_us": start + 9,
            "outcome": "ok",
        }

    def delivered(sequence: int, consumer: str, start: int, **who: Any) -> Record:
        told = {"op": "deliver", "sequence": sequence, "consumer": consumer, "returned_us": start}
        return {**message, **told, **who}

    end = messages + 1
    return {
        "clean": [],
        "lost": [
            {**publish, "producer": "p1", "number": end, "invoked_us": at, "returned_us": at + 3},
        ],
        "duplicated": [delivered(end, "c9", at + 20_000), settled(end, "c9", at + 20_100)],
        "reordered": [
            # sent and told first of all, and behind all others
            {**publish, "producer": "p1", "number": end, "invoked_us": 0, "returned_us": 1},
            delivered(end, "c9", 20_000, producer="p1", number=end),
            settled(end, "c9", 20_100),
        ],
        "held_twice": [delivered(s, "c9", at + 6_000, redelivered=True), settled(s, "c9", at + 6_500)],
        "settled_then_delivered": [delivered(s, "c9", at + 20_000, redelivered=True)],
        "phantom": [
            delivered(end, "c9", at + 20_000, producer="nobody", number=7),
            settled(end, "c9", at + 20_100),
        ],
    }


def java_below(pid: int) -> int:
    """The most memory (KiB) that a java process among the descendants of this one has had so far."""
    most = 0
    parents: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(
                line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line
            )
        except OSError:
            continue
        parents[int(entry.name)] = int(status["PPid"])
        if status["Name"].strip() == "java" and "VmHWM" in status:
            peaks[int(entry.name)] = int(status["VmHWM"].split()[0])
    for java, peak in peaks.items():
        above = java
        while above > 1 and above != pid:
            above = parents.get(above, 0)
        if above == pid:
            most = max(most, peak)
    return most


def judge(paths: list[Path], memory: str) -> tuple[dict[str, Any], float, int]:
    """(what the command says, seconds, MiB of Java at most)."""
    started = time.monotonic()
    command = [sys.executable, "-m", "quorum", "pipeline", "verify", *map(str, paths)]
    with subprocess.Popen([*command, "--memory", memory, "--json"], stdout=subprocess.PIPE) as process:
        most = 0
        while process.poll() is None:
            most = max(most, java_below(process.pid))
            time.sleep(POLL_S)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode not in (0, 1):
        raise SystemExit(f"{command} ended with {process.returncode}")
    report = json.loads(said.splitlines()[-1])
    assert report["clean"] == (process.returncode == 0)
    return report, time.monotonic() - started, most >> 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=5_000_000)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--only", action="append", help="kinds of violation, or clean")
    options = parser.parse_args()
    messages = options.operations // 3
    with tempfile.TemporaryDirectory(prefix="quorum-history-") as folder:
        base = Path(folder) / "base.jsonl"
        with open(base, "w", encoding="ascii") as file:
            file.writelines(clean(messages))
        print(f"{3 * messages:,} operations, {base.stat().st_size >> 20} MiB of JSON", flush=True)
        for kind, records in planted(messages).items():
            if options.only and kind not in options.only:
                continue
            extra = Path(folder) / f"{kind}.jsonl"
            extra.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="ascii")
            paths = [base, extra] if records else [base]
            report, seconds, most = judge(paths, options.memory)
            found: dict[str, int] = {}
            for line in report["lines"]:
                for name, count in line["broken"].items():
                    if count:
                        found[name] = found.get(name, 0) + count
            wanted = {} if kind == "clean" else {kind: 1}
            load = os.getloadavg()[0]
            print(
                f"{kind}: found {found or 'nothing'}; {seconds:.0f} s in all, {report['seconds']:.0f} s of them "
                f"judging; Java {most:,} MiB at most with --memory {options.memory}; load average {load:.1f}",
                flush=True,
            )
            assert found == wanted, f"planted {wanted}, found {found}: {report['culprits']}"


if __name__ == "__main__":
    main()
