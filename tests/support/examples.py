"""How many cases hypothesis draws: `make campaign` all of them, `make test` a share, and the same ones every time."""

from __future__ import annotations

from hypothesis import settings

SHARE = 4


def examples(campaign: int) -> int:
    """Of a test that draws so many in the campaign."""
    return max(1, campaign // SHARE) if settings.default.derandomize else campaign
