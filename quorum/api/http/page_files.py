"""The management page: three files of this package, served with a strict policy of what they may load.

The page has no data of its own. It asks for everything over the JSON paths, with the browser's own log-in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
Refused = Callable[[Request], Awaitable[Response | None]]
"""Returns the answer to a client that may not have the page; None if it may."""


def routes(refused: Refused) -> list[Route]:
    files = resources.files("quorum.api.http") / "page"
    contents = {name: (files / name).read_bytes() for name in TYPES}

    async def to_the_page(request: Request) -> Response:
        return RedirectResponse("/page/", headers=HEADERS)

    async def page(request: Request) -> Response:
        found = await refused(request)
        if found is not None:
            return found
        name = request.path_params.get("name", "index.html")
        if name not in contents:
            return Response("there is no such file\n", 404, HEADERS, "text/plain")
        return Response(contents[name], 200, {**HEADERS, "content-type": TYPES[name]})

    return [Route("/", to_the_page), Route("/page/", page), Route("/page/{name}", page)]
