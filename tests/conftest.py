"""How hypothesis runs: `make test` draws few cases, the same ones every time; `make campaign` draws new ones, and four
times as many (support/examples.py). Neither is timed."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("steady"), derandomize=False, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
