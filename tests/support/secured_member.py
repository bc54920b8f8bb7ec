"""A member as it is in production: a real process with TLS on its three ports, users, and JSON log lines."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import quorum
from quorum.cli.certificates import create
from quorum.cli.local_cluster import HOST, LocalCluster, free_ports

PASSWORD = "canary-password-4f1c"
ADMIN, WORKER, HEALTHY = "admin", "worker", "healthy"
CALL_LIMIT_S = 10.0


def _certificates_of(directory: Path) -> Path:
    return directory.with_name(directory.name + "-certificates")


class SecuredMember(LocalCluster):
    """One member. `certificates` has the authority of all its certificates, and those of `HOST` and `client`."""

    def __init__(self, directory: Path) -> None:
        folder = _certificates_of(directory.absolute())
        create([HOST, "client"], folder, 30)
        self.http = f"{HOST}:{free_ports(1)[0]}"
        pem, key, authority = (folder / name for name in (f"{HOST}.pem", f"{HOST}.key", "ca.pem"))
        settings = {
            "tls_certificate_file": pem,
            "tls_key_file": key,
            "peers_certificate_file": pem,
            "peers_key_file": key,
            "peers_ca_file": authority,
        }
        super().__init__(
            directory,
            1,
            settings={
                "http_listen": self.http,
                "log_format": "json",
                **{name: str(file) for name, file in settings.items()},
            },
        )

    @property
    def certificates(self) -> Path:
        return _certificates_of(self.directory)

    @property
    def name(self) -> str:
        return self.members[0].name

    @property
    def output(self) -> str:
        """All that the member has written."""
        return self.members[0].output.read_text(encoding="utf-8", errors="replace")

    def context(self, certificate: str = "") -> ssl.SSLContext:
        """Of a client that trusts the authority; with the certificate of this name."""
        found = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        if certificate:
            found.load_cert_chain(
                self.certificates / f"{certificate}.pem", self.certificates / f"{certificate}.key"
            )
        return found

    def url_as(self, user: str = "", password: str = PASSWORD) -> str:
        log_in = f"{user}:{password}@" if user else ""
        return f"quorums://{log_in}{self.members[0].client}/?ca_file={self.certificates}/ca.pem"

    def is_serving(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(
                f"https://{self.http}/readyz", timeout=CALL_LIMIT_S, context=self.context()
            ) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def _is_ready(self, name: str) -> bool:
        return self.is_serving(name)

    async def make_users(self) -> None:
        """`admin`; `worker`, who may write and read names that begin with `mine` and declare `mine.too`; and `healthy`
        with every right for names that begin with `healthy`. All have the same password."""
        async with quorum.connect(self.url_as()) as client:
            await client.set_user(ADMIN, PASSWORD, administers=True)
        async with quorum.connect(self.url_as(ADMIN)) as client:
            for user, *rights in ((WORKER, "mine.too", "mine*", "mine*"), (HEALTHY, *["healthy*"] * 3)):
                await client.set_user(user, PASSWORD)
                await client.set_permissions(user, *rights)
            for queue in ("mine", "mine.too"):
                await client.declare(queue, {"x-max-length": 50})

    def descriptors(self) -> int:
        """Open files and sockets of the member's process."""
        process = self.process(self.name)
        assert process is not None
        return len(os.listdir(f"/proc/{process.pid}/fd"))
