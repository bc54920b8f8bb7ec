"""A member's real process on a disk with faults: `python -m support.processes.member --config FILE` in place of
`quorum node`. SIGUSR1 is a power cut (support/log/faulty_files.py).

Beside the member's configuration: `faults.json` (Faults), `disk.json` with the `seed` of the power cut, sizes, and
the pace of scrubbing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.log.faulty_files import PowerCut

CUT_STATUS = 77
"""How the process ends by a power cut."""
FAULTS_FILE, SETUP_FILE = "faults.json", "disk.json"


def main() -> int:
    # Before any other thread is there (some libraries, like numpy's, start theirs when they are imported): one thread
    # alone hears the signal, whatever the others are just doing. Hence no import of the product above.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1
    from quorum.api.process import Disk, run
    from quorum.cli.commands.serve import log_to_stderr
    from quorum.cli.console import is_user_facing
    from quorum.config import load
    from quorum.node.maintenance.scrubbing import Pace
    from support.log.faulty_files import SIDE, FaultyFiles, PowerCut

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    file = parser.parse_args().config
    folder = file.parent
    setup = json.loads((folder / SETUP_FILE).read_text(encoding="ascii"))
    if "pace" in setup:
        setup["pace"] = Pace(**setup["pace"])
    power = PowerCut(folder / SIDE, setup.pop("seed"))
    threading.Thread(target=_await_power_cut, args=(power,), name="power", daemon=True).start()
    config = load(file)
    log_to_stderr(config.log_level)
    try:
        return run(config, Disk(FaultyFiles(folder / FAULTS_FILE, power), **setup))
    except Exception as error:
        if not is_user_facing(error):
            raise
        print(f"quorum: {error}", file=sys.stderr)
        return 1


def _await_power_cut(power: PowerCut) -> None:
    signal.sigwait({signal.SIGUSR1})
    said = power.cut()
    os.write(2, f"power cut: {said}\n".encode())
    os._exit(CUT_STATUS)


if __name__ == "__main__":
    sys.exit(main())
