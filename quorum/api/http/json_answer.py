"""An answer in JSON, also of an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

NO_STORE = {"cache-control": "no-store"}
"""Answers have messages and users in them, so neither a browser nor a proxy may keep one."""


class JsonAnswer(JSONResponse):
    def __init__(
        self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, status_code, {**NO_STORE, **(headers or {})})
