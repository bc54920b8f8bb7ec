"""Why a client and a member cannot agree about TLS, or that the address is the port of http_listen. gRPC reports only
that a connection was not made, so the client looks for itself: it connects once more, with the TLS of Python.

It says what is certain. A member that is not there, or ends the connection without a word because it is just
restarting, is no problem of TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from quorum.client.connection.endpoints import SCHEME, SECURE_SCHEME, Service

LIMIT_S = 2.0
"""Limit of the whole look at one endpoint."""
ALERT = "ALERT"
"""Part of the names of errors that the other end has reported: it speaks TLS."""
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""Names of the errors of an answer that is not TLS."""
PROTOCOL = "h2"
"""The name in TLS of HTTP/2, which gRPC demands."""
NO_GRPC = (
    "{0} looks like the port of http_listen: it speaks {1}, but not the protocol of clients (HTTP/2); use the member's "
    "address for clients"
)
HTTP_STATUS = b"HTTP/1."
"""How an answer of HTTP/1.1 begins."""
CLIENT_FILES = "; certificate_file and key_file of the URL name it"


class _Refused(Exception):
    """The member has ended the connection after the handshake."""


async def problem(service: Service, endpoint: str, limit_s: float = LIMIT_S) -> tuple[str, bool]:
    """What is wrong with the URL or the certificates, and whether that is certain; empty if nothing is known after
    `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            found = await (_of_secure(service, endpoint) if service.is_secure else _of_plain(endpoint))
    except _Refused:
        own = "" if service.certificate_file else CLIENT_FILES
        text = f"{endpoint} ends connections after the handshake of TLS, as if it refused the client's certificate"
        return text + own, False
    except (OSError, TimeoutError):  # an SSLError without a certain cause is an OSError, too
        return "", False
    return found, bool(found)


def problem_now(service: Service, endpoint: str, limit_s: float = LIMIT_S) -> tuple[str, bool]:
    """`problem` for calls that block. Nothing is known in a thread whose event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(problem(service, endpoint, limit_s))
    return "", False


async def _of_plain(endpoint: str) -> str:
    if await _speaks_http(endpoint):
        return NO_GRPC.format(endpoint, "HTTP/1.1")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with _connected(endpoint, context) as (_, protocol):
            if protocol != PROTOCOL:
                return NO_GRPC.format(endpoint, "TLS")
    except ssl.SSLError as error:
        if ALERT not in (error.reason or ""):
            return ""
    return (
        f"{endpoint} speaks TLS, and the URL is without TLS; use {SECURE_SCHEME}{endpoint}/?ca_file=CA.pem, where "
        "CA.pem is the certificate of the authority that has signed the member's"
    )


async def _of_secure(service: Service, endpoint: str) -> str:
    try:
        context = ssl.create_default_context(cafile=service.ca_file or None)
    except ssl.SSLError as error:
        return f"ca_file {service.ca_file} has no certificate that can be used: {_reason(error)}"
    try:
        if service.certificate_file:
            context.load_cert_chain(service.certificate_file, service.key_file)
    except ssl.SSLError as error:
        files = f"certificate_file {service.certificate_file} with key_file {service.key_file}"
        return f"{files} cannot be used: {_reason(error)}"
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # gRPC does not check that much either
    try:
        async with _connected(endpoint, context) as (reader, protocol):
            if protocol != PROTOCOL:
                return NO_GRPC.format(endpoint, "TLS")
            if not await reader.read(1):  # with TLS 1.3, a member refuses the client's certificate only here
                raise _Refused
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message.rstrip(".")
        return f"the certificate of {endpoint} is not accepted: {why}" + _remedy(service, error)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if ALERT in reason:
            said = reason.partition(ALERT)[2].strip("_").replace("_", " ").lower()
            own = "" if service.certificate_file else CLIENT_FILES
            return f"{endpoint} does not accept the client's certificate: {said}{own}"
        if reason in NOT_TLS:
            return f"{endpoint} does not speak TLS, and the URL is with TLS; use {SCHEME}{endpoint}"
        raise
    return ""


async def _speaks_http(endpoint: str) -> bool:
    """Whether the other end answers a request of HTTP/1.1 with one of its statuses."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(f"GET / HTTP/1.1\r\nhost: {endpoint}\r\nconnection: close\r\n\r\n".encode())
        async with asyncio.timeout(LIMIT_S / 2):
            return await reader.readexactly(len(HTTP_STATUS)) == HTTP_STATUS
    except (OSError, EOFError, TimeoutError):
        return False
    finally:
        writer.transport.abort()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _remedy(service: Service, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code not in UNKNOWN_AUTHORITY:
        return ""
    if service.ca_file:
        return f"; {service.ca_file} (ca_file of the URL) is not the authority that has signed it"
    return "; the URL has to name the authority that has signed it: ?ca_file=CA.pem"


UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes of certificates without a trusted authority: X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and the next."""


@contextlib.asynccontextmanager
async def _connected(
    endpoint: str, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, str | None]]:
    """A connection, and the protocol that the other end has chosen for it."""
    context.set_alpn_protocols([PROTOCOL])
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        yield reader, writer.get_extra_info("ssl_object").selected_alpn_protocol()
    finally:
        writer.transport.abort()
