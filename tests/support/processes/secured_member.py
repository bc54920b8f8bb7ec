"""A member as it is in production: a real process with TLS on its three ports, users, and JSON log lines."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import quorum
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.ports import HOST, free_ports

PASSWORD = "canary-password-4f1c"
WORKER, HEALTHY = "worker", "healthy"


class SecuredMember(LocalCluster):
    """One member of a secured cluster, with a port for HTTP and a log of JSON lines."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory, 1, secured=True, http_ports=free_ports(1), settings={"log_format": "json"}
        )

    @property
    def http(self) -> str:
        return self.members[0].http

    @property
    def name(self) -> str:
        return self.members[0].name

    @property
    def output(self) -> str:
        """All that the member has written."""
        return self.members[0].output.read_text(encoding="utf-8", errors="replace")

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a client. It trusts the authority of the clients' port. It has no certificate."""
        return ssl.create_default_context(cafile=str(self.files.certificates / "ca.pem"))

    def peer_context(self, *, has_certificate: bool = True) -> ssl.SSLContext:
        """Return the TLS context of a node that connects to the members' port. It trusts the members' authority.
        has_certificate: it also has a member's certificate."""
        found = ssl.create_default_context(cafile=str(self.files.peer_certificates / "ca.pem"))
        if has_certificate:
            found.load_cert_chain(
                self.files.peer_certificates / f"{HOST}.pem", self.files.peer_certificates / f"{HOST}.key"
            )
        return found

    def url_as(self, user: str = "") -> str:
        """user: one that `make_users` has made; without one, the client does not log in."""
        log_in = f"{user}:{PASSWORD}@" if user else ""
        return f"quorums://{log_in}{self.members[0].client}/?ca_file={self.files.certificates}/ca.pem"

    async def make_users(self) -> None:
        """The administrator; `worker`, who may write and read names that begin with `mine` and declare `mine.too`; and
        `healthy` with every right for names that begin with `healthy`. The last two have the same password."""
        await asyncio.to_thread(self.files.make_administrator)
        async with quorum.connect(self.url) as client:
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
