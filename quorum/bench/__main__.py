"""`python -m quorum.bench` is `quorum bench`."""

from quorum.bench.command import app

if __name__ == "__main__":
    app()
