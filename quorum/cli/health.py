"""`quorum health`: the health of one member, for container engines and scripts.

It asks the gRPC health service (grpc.health.v1). With an address it imports nothing of the client, so that a probe
costs little.
"""

from __future__ import annotations

from typing import Annotated

import typer

from quorum.cli.console import CliError

ANSWER_LIMIT_S = 4.0


def health(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="a member's address for clients, or its URL")
    ] = ("127.0.0.1:7400"),
    answers: Annotated[
        bool,
        typer.Option(
            "--answers", help="only whether the member answers; a member without a majority answers, too"
        ),
    ] = False,
) -> None:
    """Tell whether a member serves clients. The status is 0 if it does, and 1 if not."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    if "://" in address:
        from quorum.client.endpoints import parse_url

        service = parse_url(address)
        channel = service.open_blocking_channel(service.endpoints[0])
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        try:
            found = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=ANSWER_LIMIT_S
            )
        except grpc.RpcError as error:
            raise CliError(f"{address} does not answer: {error.details()}", 1) from error
    serves = found.status == health_pb2.HealthCheckResponse.SERVING
    print("serves clients" if serves else "answers, and does not serve clients")
    if not serves and not answers:
        raise typer.Exit(1)
