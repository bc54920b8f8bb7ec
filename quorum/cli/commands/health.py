"""`quorum health`: the health of one member, for container engines and scripts.

It asks the gRPC health service (grpc.health.v1). With an address it imports nothing of the client, so that a probe
costs little.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.addresses import host_port
from quorum.cli.console import DEFAULT_URL, CliError, JsonOption, default_url, print_json, without_log_of_grpc

if TYPE_CHECKING:
    from quorum.client.connection.endpoints import Service

ANSWER_LIMIT_S = 4.0


def health(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST:PORT",
            envvar="QUORUM_URL",
            help="a member's address for clients, or its URL, of which the first member is asked; without it "
            f"QUORUM_URL, else the local cluster in ./quorum-data, else {DEFAULT_URL}",
        ),
    ] = None,
    answers: Annotated[
        bool,
        typer.Option(
            "--answers", help="only whether the member answers; a member without a majority answers, too"
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.0, help="seconds to wait for the answer, at most")
    ] = ANSWER_LIMIT_S,
    as_json: JsonOption = False,
) -> None:
    """Tell whether a member serves clients. The status is 0 if it does, and 1 if not."""
    end_s = time.monotonic() + timeout
    without_log_of_grpc()
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    service = None
    shown = address = address or default_url()
    if "://" in address:
        from quorum.client.connection.endpoints import parse_url

        service = parse_url(address)
        shown = service.endpoints[0]
        channel = service.open_blocking_channel(shown)
    else:
        try:
            host_port(address)
        except ValueError as error:
            raise CliError(str(error)) from error
        channel = grpc.insecure_channel(address)
    with channel:
        try:
            found = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout
            )
        except grpc.RpcError as error:
            raise CliError(
                f"{shown} does not answer: {_cause(error, service, shown, timeout, end_s)}", 1
            ) from error
    serves = found.status == health_pb2.HealthCheckResponse.SERVING
    if as_json:
        print_json({"address": shown, "serves": serves})
    else:
        print("serves clients" if serves else "answers, and does not serve clients")
    if not serves and not answers:
        raise typer.Exit(1)


def _cause(error: Any, service: Service | None, address: str, timeout: float, end_s: float) -> str:
    """Why there is no answer. service: None for one without TLS. timeout: seconds that the command may take, until
    `end_s` on the monotonic clock."""
    import grpc

    left_s = end_s - time.monotonic()
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED or left_s <= 0:
        return f"nothing came within {timeout:g} s"
    from quorum.client.connection import tls
    from quorum.client.connection.endpoints import Service
    from quorum.client.errors import plain_details

    try:
        found, _ = tls.problem_now(service or Service((address,)), address, min(left_s, tls.LIMIT_S))
    except ValueError:  # it is no host:port
        found = ""
    return found or plain_details(error)
