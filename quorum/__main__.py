"""The command `quorum`, which `python -m quorum` is as well.

Its modules take some tenths of a second to load. Ctrl-C ends the process at once meanwhile, without a traceback.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line and end the process (the entry point)."""
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler  # a shell ignores it in commands in the background
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from quorum.cli.main import main as run

    if is_usual:
        signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
