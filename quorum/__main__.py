"""`python -m quorum` is the command `quorum`."""

from quorum.cli.main import main

if __name__ == "__main__":
    main()
