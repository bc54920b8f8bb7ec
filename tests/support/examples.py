"""How many cases hypothesis draws: `make campaign` all of them, `make test` a share, and the same ones every time."""

from __future__ import annotations

from hypothesis import settings

SHARE = 4


def examples(campaign: int, share: int = SHARE) -> int:
    """Of a test that draws so many in the campaign. share: a dear test draws fewer of them elsewhere."""
    return max(1, campaign // share) if settings.default.derandomize else campaign
