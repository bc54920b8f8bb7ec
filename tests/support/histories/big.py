"""A long history, clean and with each kind of violation planted in it, judged by the command as its users start it.

    PYTHONPATH=tests python -m support.histories.big --operations 5000000 --memory 2g

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
from dataclasses import dataclass
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

    def message_at(sequence: int) -> Record:
        return {"producer": f"p{sequence % PRODUCERS}", "number": sequence // PRODUCERS}

    message = {"queue": "orders", **message_at(s)}
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
    unknown = {"producer": "nobody", "number": 7}
    early = {"producer": "p1", "number": end}
    return {
        "lost": [{**publish, "producer": "p2", "number": end, "invoked_us": at, "returned_us": at + 3}],
        "duplicated": [delivered(end, "c9", at + 20_000), settled(end, "c9", at + 20_100)],
        "reordered": [
            # sent and told first of all, and behind all others
            {**publish, **early, "invoked_us": 0, "returned_us": 1},
            delivered(end + 1, "c9", 20_000, **early),
            settled(end + 1, "c9", 20_100),
        ],
        "held_twice": [
            delivered(s + 1, "c9", at + STEP_US + 6_000, redelivered=True, **message_at(s + 1)),
            {**settled(s + 1, "c9", at + STEP_US + 6_500), "op": "return"},
        ],
        "settled_then_delivered": [
            delivered(s + 2, "c9", at + 20_000, redelivered=True, **message_at(s + 2))
        ],
        "phantom": [delivered(end + 2, "c9", at + 20_000, **unknown), settled(end + 2, "c9", at + 20_100)],
    }


@dataclass(slots=True)
class Java:
    """What a java process took: processor seconds, and the most memory it had."""

    seconds: float = 0.0
    peak_kib: int = 0


def look_at_java(pid: int, java: Java) -> None:
    """Of the java process among the descendants of this one."""
    parents: dict[int, int] = {}
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            lines = (entry / "status").read_text().splitlines()
        except OSError:
            continue
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        parents[int(entry.name)] = int(status["PPid"])
        if status["Name"].strip() == "java" and "VmHWM" in status:
            found[int(entry.name)] = int(status["VmHWM"].split()[0])
    for each, peak in found.items():
        above = each
        while above > 1 and above != pid:
            above = parents.get(above, 0)
        if above == pid:
            java.peak_kib = max(java.peak_kib, peak)
            try:
                stat = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            java.seconds = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def judge(paths: list[Path], memory: str) -> tuple[dict[str, Any], float, Java]:
    """(what the command says, seconds, what Java took)."""
    started = time.monotonic()
    command = [sys.executable, "-m", "quorum", "pipeline", "verify", *map(str, paths)]
    with subprocess.Popen([*command, "--memory", memory, "--json"], stdout=subprocess.PIPE) as process:
        java = Java()
        while process.poll() is None:
            look_at_java(process.pid, java)
            time.sleep(POLL_S)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode not in (0, 1) or not said:
        raise SystemExit(f"{command} ended with {process.returncode}")
    report = json.loads(said.splitlines()[-1])
    assert report["clean"] == (process.returncode == 0)
    return report, time.monotonic() - started, java


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=5_000_000)
    parser.add_argument("--memory", default="2g")
    parser.add_argument(
        "--only", action="append", help="clean, all (of them planted), or a kind of violation; clean and all"
    )
    options = parser.parse_args()
    messages = options.operations // 3
    with tempfile.TemporaryDirectory(prefix="quorum-history-") as folder:
        base = Path(folder) / "base.jsonl"
        with open(base, "w", encoding="ascii") as file:
            file.writelines(clean(messages))
        print(f"{3 * messages:,} operations, {base.stat().st_size >> 20} MiB of JSON", flush=True)
        kinds = planted(messages)
        plans: dict[str, list[str]] = {"clean": [], "all": list(kinds), **{kind: [kind] for kind in kinds}}
        for kind in options.only or ("clean", "all"):
            records = [each for name in plans[kind] for each in kinds[name]]
            extra = Path(folder) / f"{kind}.jsonl"
            extra.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="ascii")
            paths = [base, extra] if records else [base]
            report, seconds, java = judge(paths, options.memory)
            found: dict[str, int] = {}
            for line in report["lines"]:
                for name, count in line["broken"].items():
                    if count:
                        found[name] = found.get(name, 0) + count
            wanted = dict.fromkeys(plans[kind], 1)
            load = os.getloadavg()[0]
            print(
                f"{kind}: found {found or 'nothing'}; {seconds:.0f} s in all, {report['seconds']:.0f} s of them "
                f"judging, {java.seconds:.0f} s of Java's processor time; Java {java.peak_kib >> 10:,} MiB at most "
                f"with --memory {options.memory}; load average {load:.1f}",
                flush=True,
            )
            assert found == wanted, f"planted {wanted}, found {found}: {report['culprits']}"


if __name__ == "__main__":
    main()
