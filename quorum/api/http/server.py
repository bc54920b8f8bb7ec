"""The HTTP port of a member: `/metrics` for Prometheus, `/healthz` for a process that answers, `/readyz` for one that
serves clients, the services as JSON (json_api.py) and the management page (page_files.py). It is off unless
`http_listen` is set. Metrics and the page need a user who may monitor. With a certificate for clients, the port has
TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quorum.addresses import host_port
from quorum.api.connections import LOOK_S, Connection, close_excess, excess
from quorum.api.http import description, errors, page_files
from quorum.api.http.answers import Answers
from quorum.api.http.callers import check_origin, peer_of
from quorum.api.http.json_api import JsonApi
from quorum.api.http.metrics import Metrics
from quorum.api.hub.hub import Hub
from quorum.api.owners import CALLER, OF_USER, client_address, network_of
from quorum.api.security.access import Access, refusal
from quorum.api.security.certificates import Certificates, RenewedContext
from quorum.api.security.rights import MONITOR
from quorum.api.status import Code, StatusError
from quorum.errors import OperatorError
from quorum.node.queries import CheckHealth

if TYPE_CHECKING:
    from quorum.replication.network.tls import TlsSecurity

MOST_CONNECTIONS = 64
"""Connections at a time; an address may have as many as are left free, and those that have sent least are closed."""
KEEP_ALIVE_S = 15
MOST_HEADER_BYTES = 16_384
MOST_NAME = 255
"""Characters of a queue's name."""


async def _refused(access: Access, request: Request) -> Response | None:
    """The answer to a client that may not monitor; None if it may."""
    peer = peer_of(request)
    try:
        user = await access.admit("HTTP", peer, client_address(peer), dict(request.headers))
        check_origin(request, has_user=user is not None)
        if user is not None:
            CALLER.set(OF_USER + user.name)
        refused = refusal((MONITOR,), user)
    except StatusError as error:
        refused = error
    if refused is None:
        return None
    text = refused.status.message + "\n"
    if refused.status.code == Code.UNAUTHENTICATED:
        return PlainTextResponse(text, 401, {"www-authenticate": 'Basic realm="quorum"'})
    return PlainTextResponse(text, 403 if refused.status.code == Code.PERMISSION_DENIED else 503)


async def _gone(request: Request, error: Exception) -> Response:
    """The client does not read this."""
    return Response(status_code=400)


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The member's process handles its signals itself."""
        yield


class HttpServer:
    def __init__(
        self,
        hub: Hub,
        api: JsonApi,
        certificates: Certificates | None = None,
        peer_security: TlsSecurity | None = None,
    ) -> None:
        """certificates: for TLS, here and for clients of gRPC. peer_security: for other members."""
        ends: dict[str, Callable[[], int]] = {}
        if certificates is not None:
            ends |= {"client": certificates.end, "http": certificates.end}
        if peer_security is not None:
            ends["peer"] = peer_security.end
        metrics = Metrics(hub, ends)

        async def of_member(request: Request) -> Response:
            if (refused := await _refused(hub.access, request)) is not None:
                return refused
            return Response(await metrics.of_member(), media_type=CONTENT_TYPE_LATEST)

        async def of_queues(request: Request) -> Response:
            if (refused := await _refused(hub.access, request)) is not None:
                return refused
            prefix = request.query_params.get("prefix", "")
            if len(prefix) > MOST_NAME:
                return PlainTextResponse(f"prefix: at most {MOST_NAME} characters\n", 400)
            return Response(await metrics.of_queues(prefix), media_type=CONTENT_TYPE_LATEST)

        async def answers(request: Request) -> Response:
            return PlainTextResponse("answers\n")

        async def serves(request: Request) -> Response:
            is_ready = (await hub.requests.query(CheckHealth())).is_ready
            return PlainTextResponse(
                "serves clients\n" if is_ready else "does not serve clients\n", 200 if is_ready else 503
            )

        handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/metrics": of_member,
            "/metrics/queues": of_queues,
            "/healthz": answers,
            "/readyz": serves,
        }
        page = page_files.routes(lambda request: _refused(hub.access, request))
        app = Starlette(
            routes=[
                *page,
                *(Route(path, handler) for path, handler in handlers.items()),
                *description.routes(api.refused),
                *api.routes(),
            ],
            exception_handlers={**errors.HANDLERS, ClientDisconnect: _gone},
        )
        config = uvicorn.Config(
            self._limited(Answers(app)),
            http=errors.Protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            ssl_certfile=None if certificates is None else certificates.certificate,
            ssl_keyfile=None if certificates is None else certificates.key,
            server_header=False,
            proxy_headers=False,  # they would say who the client is
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
        config.load()
        if certificates is not None and config.ssl is not None:
            config.ssl = RenewedContext(certificates, config.ssl)
        self._server = _Uvicorn(config)
        self.tasks: list[asyncio.Task[None]] = []
        """end only after `stop`"""

    def _limited(self, app: ASGIApp) -> ASGIApp:
        """As uvicorn's `limit_concurrency`, which answers in plain text and does not count by address."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            is_refused = self._is_full_for(scope["client"])
            await (errors.too_many_connections(MOST_CONNECTIONS) if is_refused else app)(scope, receive, send)

        return answer

    def _is_full_for(self, client: tuple[str, int] | None) -> bool:
        """Whether there are too many connections, and this client's address has more than its share of them. The
        connections beyond a share are not counted for other addresses. They will be closed, but a flood opens new ones
        immediately."""
        state = self._server.server_state
        if len(state.connections) < MOST_CONNECTIONS and len(state.tasks) <= MOST_CONNECTIONS:
            return False
        hosts = [found[0] for each in state.connections if (found := getattr(each, "client", None))]
        held = [Connection(number, number, network_of(host), 0) for number, host in enumerate(hosts)]
        beyond = excess(held, MOST_CONNECTIONS)
        is_one_of_many = client is None or network_of(client[0]) in {each.network for each in beyond}
        return is_one_of_many or len(held) - len(beyond) > MOST_CONNECTIONS

    async def start(self, address: str) -> int:
        """Listen on host:port; return the port. OperatorError if the address cannot be used."""
        host, port = host_port(address)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, place = found[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(place)
                listener.listen(128)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise OperatorError(f"cannot listen for HTTP on {address}: {error.strerror}") from error
        chosen: int = listener.getsockname()[1]
        serving, watching = self._server.serve(sockets=[listener]), self._watch(chosen)
        self.tasks += [asyncio.create_task(serving), asyncio.create_task(watching)]
        return chosen

    async def _watch(self, port: int) -> None:
        """Close excess connections of an address, also those that do not end the handshake of TLS."""
        while True:
            await asyncio.sleep(LOOK_S)
            closed = await asyncio.to_thread(close_excess, port, MOST_CONNECTIONS)
            if closed:
                structlog.get_logger().warning(
                    "HTTP connections closed: an address had too many", closed=closed, most=MOST_CONNECTIONS
                )

    async def stop(self) -> None:
        self._server.should_exit = True
        if self.tasks:
            serving, watching = self.tasks
            watching.cancel()
            await serving
