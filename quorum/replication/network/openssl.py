"""One end of TLS in memory. It is OpenSSL of the package cryptography, so it is a new release on every system.

pyOpenSSL takes the certificates and does the handshake. Its methods that read and write copy all bytes once more, and
a byte would cost half as much again. So `TlsEnd` calls the functions below them, and pyproject.toml bounds its release.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto

_lib, _ffi = Binding.lib, Binding.ffi

RELEASE = SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode()
"""Of OpenSSL, such as `OpenSSL 4.0.3 29 Sep 2026`."""
OF_ANOTHER_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate whose issuer is not trusted."""
CERTIFICATE_REFUSED = "certificate verify failed"
_REASONS = {
    "peer did not return a certificate": "it has no certificate",
    "unsupported protocol": "it does not speak TLS 1.3",
    **dict.fromkeys(
        ("wrong version number", "http request", "record layer failure"), "it does not speak TLS"
    ),
}
"""By OpenSSL's words."""


class TlsError(OSError):
    """What is wrong with the other end, in words for an operator. certificate: what is wrong with its certificate, and
    code: the same as OpenSSL's number; empty and 0 if something else is wrong."""

    def __init__(self, text: str, certificate: str = "", code: int = 0) -> None:
        super().__init__(text)
        self.certificate = certificate
        self.code = code


def context_of(certificates: bytes, key: bytes, authorities: bytes) -> SSL.Context:
    """For both roles: TLS 1.3, and the other end needs a certificate of one of the authorities. All in PEM; the first
    certificate is the one of the key, the others follow it in its chain. OSError if one cannot be used."""
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
    context.clear_mode(_lib.SSL_MODE_ENABLE_PARTIAL_WRITE)
    try:
        own, *chain = x509.load_pem_x509_certificates(certificates)
        context.use_certificate(own)
        context.use_privatekey(load_pem_private_key(key, None))  # type: ignore[arg-type]
        context.check_privatekey()
        for each in chain:
            context.add_extra_chain_cert(each)
        store = context.get_cert_store()
        assert store is not None
        for each in x509.load_pem_x509_certificates(authorities):
            store.add_cert(crypto.X509.from_cryptography(each))
    except (SSL.Error, crypto.Error) as error:
        raise OSError(_words(error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OSError(str(error)) from error
    return context


class TlsEnd:
    """An end of a connection. Its caller carries what is encrypted."""

    def __init__(self, context: SSL.Context, *, is_dialer: bool) -> None:
        self._connection = connection = SSL.Connection(context, None)
        if is_dialer:
            connection.set_connect_state()
        else:
            connection.set_accept_state()
        self._ssl = connection._ssl
        self._to_send = connection._from_ssl
        self._received: object = None
        """keeps the bytes that were put"""
        self.is_ended = False
        """the other end has said that it sends no more"""

    def shake_hands(self) -> bool:
        """Whether the handshake is done. TlsError if it fails; then there may be an alert to send."""
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise self._error(_words(error)) from error
        return True

    def put(self, encrypted: memoryview | bytes) -> None:
        """Bytes of the other end. They are not copied: they must not change before `shake_hands` is not done, or
        `read_into` does not fill its buffer. Until then no others are put."""
        self._received = _ffi.from_buffer(encrypted)
        source = _lib.BIO_new_mem_buf(self._received, len(encrypted))
        _lib.BIO_set_mem_eof_return(source, -1)  # at its end, OpenSSL waits for more
        _lib.SSL_set_bio(self._ssl, source, self._to_send)

    def take(self, buffer: bytearray) -> int:
        """Fill the buffer with bytes for the other end. Returns their number."""
        return max(0, int(_lib.BIO_read(self._to_send, _ffi.from_buffer(buffer), len(buffer))))

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt what has been received, and fits. Returns the number of bytes; if they fill the buffer, there may be
        more. TlsError if the other end sent something else."""
        read, tls = _lib.SSL_read, self._ssl
        start, size, taken = _ffi.from_buffer(buffer), len(buffer), 0
        while taken < size:
            count = read(tls, start + taken, size - taken)  # one record at most
            if count <= 0:
                self._check(count)
                break
            taken += count
        return taken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt. The handshake is done, and data is not empty."""
        count = _lib.SSL_write(self._ssl, _ffi.from_buffer(data), len(data))
        if count <= 0:
            self._check(count)

    def _check(self, result: int) -> None:
        """Why OpenSSL has read or written nothing."""
        problem = _lib.SSL_get_error(self._ssl, result)
        if problem == _lib.SSL_ERROR_ZERO_RETURN:
            self.is_ended = True
        elif problem != _lib.SSL_ERROR_WANT_READ:
            words = []
            while number := _lib.ERR_get_error():  # what is left there would be taken for the next call's
                text = _lib.ERR_reason_error_string(number)
                words.append(_ffi.string(text).decode() if text else f"error {number}")
            raise self._error(words[0] if words else "broken")

    def _error(self, words: str) -> TlsError:
        """words: of OpenSSL."""
        if words == CERTIFICATE_REFUSED:
            code = int(_lib.SSL_get_verify_result(self._ssl))
            wrong = _ffi.string(_lib.X509_verify_cert_error_string(code)).decode().rstrip(".")
            other = ", so it is of another authority" if code in OF_ANOTHER_AUTHORITY else ""
            return TlsError(f"its certificate is not accepted: {wrong}{other}", wrong, code)
        if words in _REASONS:
            return TlsError(_REASONS[words])
        _, alert, reason = words.partition(" alert ")
        if alert:
            return TlsError(f"it does not accept this member's certificate or TLS: {reason}")
        return TlsError(f"no handshake of TLS: {words}")


def _words(error: Exception) -> str:
    """What OpenSSL says first."""
    if isinstance(error, SSL.ZeroReturnError):
        return "the other end has closed it"
    found = error.args[0] if error.args else ()
    return str(found[0][-1]) if found and isinstance(found, list) else str(error) or "broken"
