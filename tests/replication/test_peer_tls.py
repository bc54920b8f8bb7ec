"""TLS between members: what comes through it, whose certificate is accepted, and which files a member takes."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL

from quorum.cli.commands.certificates import create
from quorum.replication.network.certificates import end_of
from quorum.replication.network.handshake import WIRE_VERSION, Versions
from quorum.replication.network.tls import TlsChannel, TlsSecurity
from quorum.replication.network.wire import SEALED_SINCE, frame_header
from support.hostile.certificates import issue
from support.peers.certificates import tls
from support.peers.cluster import DEADLINE_S, SECRET, Cluster, dial
from support.repository import ROOT


@pytest.mark.parametrize("size", [0, 1, 16_000, 16_384, 70_000, 5_000_000])
def test_frames_of_any_size_come_through_tls_in_both_directions(
    cluster: Cluster, made: Path, size: int
) -> None:
    for name in "ab":
        cluster.add(name, security=tls(made, name))
    cluster.until(lambda: cluster.connected("a", "b"))
    sent = [bytes([number]) * size for number in range(4)]
    for one, other in (("a", "b"), ("b", "a")):
        for data in sent:
            assert cluster.networks[one].send(other, 3, [data[:9], data[9:]])
    cluster.until(lambda: all(len(cluster.frames[name]) == len(sent) for name in "ab"))
    for name in "ab":
        assert [data for _, _, data in cluster.frames[name]] == sent
        assert cluster.networks[name].stats.bad_frames == 0


def test_many_small_frames_come_through_tls(cluster: Cluster, made: Path) -> None:
    for name in "ab":
        cluster.add(name, security=tls(made, name))
    cluster.until(lambda: cluster.connected("a", "b"))
    for number in range(20_000):
        cluster.networks["a"].send("b", 3, [number.to_bytes(4, "little")])
    cluster.until(lambda: len(cluster.frames["b"]) == 20_000)
    assert [int.from_bytes(data, "little") for _, _, data in cluster.frames["b"]] == list(range(20_000))


@pytest.mark.parametrize(("newest", "has_tls"), [(1, True), (2, False), (2, True)])
def test_the_crc_has_the_payload_except_where_both_ends_know_that_tls_has_checked_it(
    cluster: Cluster, made: Path, newest: int, has_tls: bool
) -> None:
    """Release 0.2.0 speaks wire version 1."""
    for name, known in (("a", WIRE_VERSION), ("b", newest)):
        cluster.add(name, versions=Versions(1, known), security=tls(made, name) if has_tls else None)
    cluster.until(lambda: cluster.connected("a", "b"))
    for one, other in ("ab", "ba"):
        network = cluster.networks[one]
        network.send(other, 3, [b"payload"])
        [header, _] = network._up[other].queue._parts
        assert header == frame_header(3, [b"payload"], is_sealed=has_tls and newest >= SEALED_SINCE)[0]
    cluster.until(lambda: all(cluster.frames[name] for name in "ab"))
    assert cluster.frames == {"a": [("b", 3, b"payload")], "b": [("a", 3, b"payload")]}


def test_a_member_without_tls_or_of_another_authority_is_not_connected(cluster: Cluster, made: Path) -> None:
    cluster.add("a", security=tls(made, "a"))
    cluster.add("b", security=tls(made, "b", "other"))
    cluster.add("c")
    refused = cluster.networks["a"].stats
    cluster.until(lambda: refused.refused_handshakes >= 4)
    assert cluster.networks["a"].links() == []


def test_the_secret_is_asked_for_inside_tls(cluster: Cluster, made: Path) -> None:
    cluster.add("a", security=tls(made, "a"))
    cluster.add("b", security=tls(made, "b"), secret=SECRET[::-1])
    cluster.until(
        lambda: (
            cluster.networks["a"].stats.refused_handshakes + cluster.networks["b"].stats.refused_handshakes
            > 1
        )
    )
    assert not cluster.connected("a", "b")


def test_nothing_is_read_before_the_handshake_of_tls(cluster: Cluster, made: Path) -> None:
    network = cluster.add("a", security=tls(made, "a"))
    with socket.create_connection(network.address) as rubbish:
        rubbish.sendall(bytes(range(256)) * 40)
        cluster.until(lambda: network.stats.refused_handshakes == 1)
        rubbish.settimeout(DEADLINE_S)
        answer = rubbish.recv(100)
        assert answer == b"" or answer[:1] == b"\x15", "nothing, or an alert of TLS"


def test_an_idle_connection_with_tls_is_not_polled_for_ever(cluster: Cluster, made: Path) -> None:
    """While one end is silent in the handshake, and afterwards, no event wakes the loop."""
    network = cluster.add("a", security=tls(made, "a"))
    with socket.create_connection(network.address):
        cluster.poll()
        cluster.poll()
        assert network._selector.select(0) == []
    cluster.add("b", security=tls(made, "b"))
    cluster.until(lambda: cluster.connected("a", "b"))
    for _ in range(5):
        cluster.poll()
    assert all(each._selector.select(0) == [] and not each._buffered for each in cluster.networks.values())


def test_renewed_certificates_are_used_for_new_connections(cluster: Cluster, tmp_path: Path) -> None:
    create(["a", "b"], tmp_path / "own", 30)
    securities = {name: tls(tmp_path, name) for name in "ab"}
    for name, security in securities.items():
        cluster.add(name, security=security)
    cluster.until(lambda: cluster.connected("a", "b"))
    before = {name: security._content for name, security in securities.items()}
    create(["a"], tmp_path / "own", 30)
    (tmp_path / "own" / "b.pem").write_text("rubbish")  # its last good certificate stays in use
    connection = cluster.networks["a"]._up["b"]
    connection.socket.shutdown(socket.SHUT_RDWR)
    cluster.until(lambda: cluster.networks["a"].stats.lost == 1)
    cluster.until(lambda: cluster.connected("a", "b"))
    used = {name: security._content is before[name] for name, security in securities.items()}
    assert used == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("wrong", "connects"),
    [
        ({}, True),
        ({"host": "any.name"}, True),
        ({"first_day": -3, "last_day": -1}, False),
        ({"first_day": 1, "last_day": 3}, False),
        ({"for_server": False}, False),
        ({"for_client": False}, False),
    ],
    ids=["right", "any name", "expired", "not yet valid", "only for clients", "only for servers"],
)
@pytest.mark.parametrize("holder", ["a", "b"])
def test_a_member_whose_certificate_is_wrong_is_not_connected(
    cluster: Cluster, made: Path, tmp_path: Path, holder: str, wrong: dict[str, Any], connects: bool
) -> None:
    """b dials a. A certificate that is only for one of both roles is refused in the other one."""
    own = made / "own"
    bad = TlsSecurity(*issue(own, tmp_path, **wrong), own / "ca.pem")
    role = {"a": "for_client", "b": "for_server"}[holder]
    for name in "ab":
        cluster.add(name, security=bad if name == holder else tls(made, name))
    if connects or role in wrong:
        cluster.until(lambda: cluster.connected("a", "b"))
        return
    stats = [network.stats for network in cluster.networks.values()]
    cluster.until(lambda: sum(each.refused_handshakes for each in stats) >= 4)
    assert not cluster.connected("a", "b")


def use(context: SSL.Context, certificate: Path, key: Path) -> None:
    own, *chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    context.use_certificate(own)
    for each in chain:
        context.add_extra_chain_cert(each)
    context.use_privatekey(load_pem_private_key(key.read_bytes(), None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("none", "it has no certificate"),
        ("of the clients' authority", "its certificate is not accepted"),
        ("of a member's own making", "its certificate is not accepted"),
        ("TLS 1.2", "it does not speak TLS 1.3"),
    ],
)
def test_a_stranger_on_the_peers_port_does_not_finish_the_handshake_of_tls(
    cluster: Cluster, made: Path, tmp_path: Path, kind: str, reason: str
) -> None:
    network = cluster.add("a", security=tls(made, "a"))
    context = SSL.Context(SSL.TLS_METHOD)
    if kind == "of the clients' authority":
        use(context, made / "other" / "b.pem", made / "other" / "b.key")
    elif kind == "of a member's own making":
        (tmp_path / "ca.pem").write_bytes((made / "own" / "b.pem").read_bytes())
        (tmp_path / "ca.key").write_bytes((made / "own" / "b.key").read_bytes())
        certificate, key = issue(tmp_path, tmp_path / "made")
        chain = tmp_path / "chain.pem"
        chain.write_bytes(certificate.read_bytes() + (tmp_path / "ca.pem").read_bytes())
        use(context, chain, key)
    elif kind == "TLS 1.2":
        use(context, made / "own" / "b.pem", made / "own" / "b.key")
        context.set_max_proto_version(SSL.TLS1_2_VERSION)
    connection = socket.create_connection(network.address)
    connection.setblocking(False)
    stranger = TlsChannel(connection, context, is_dialer=True)

    def is_refused() -> bool:
        try:
            stranger.send([b"hello"])
            return stranger.recv_into(bytearray(100)) == 0
        except OSError:
            return True

    with structlog.testing.capture_logs() as lines:
        cluster.until(is_refused)
        cluster.until(lambda: network.stats.refused_handshakes == 1)
    [said] = [line["reason"] for line in lines]
    assert said.startswith(reason)
    connection.close()


SECURITIES = {
    "own": lambda made, name, folder: tls(made, name),
    "other": lambda made, name, folder: tls(made, name, "other"),
    "expired": lambda made, name, folder: TlsSecurity(
        *issue(made / "own", folder, first_day=-3, last_day=-1), made / "own" / "ca.pem"
    ),
    "none": lambda made, name, folder: None,
}
NOT_ACCEPTED = "its certificate is not accepted: "
ACCEPTS_NOT = "it does not accept this member's certificate or TLS: "


@pytest.mark.parametrize(
    ("listener", "dialer", "listener_says", "dialer_says"),
    [
        (
            "own",
            "other",
            f"{ACCEPTS_NOT}unknown ca",
            f"{NOT_ACCEPTED}self-signed certificate in certificate chain, so it is of another authority",
        ),
        ("expired", "own", f"{ACCEPTS_NOT}certificate expired", f"{NOT_ACCEPTED}certificate has expired"),
        ("own", "expired", f"{NOT_ACCEPTED}certificate has expired", f"{ACCEPTS_NOT}certificate expired"),
        ("own", "none", "it does not speak TLS", "closed in the handshake"),
        ("none", "own", "it speaks TLS, and this member does not", ""),
    ],
)
def test_both_ends_say_in_words_what_is_wrong_with_tls(
    cluster: Cluster,
    made: Path,
    tmp_path: Path,
    listener: str,
    dialer: str,
    listener_says: str,
    dialer_says: str,
) -> None:
    """And the page of operations has each reason. b dials a."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    with structlog.testing.capture_logs() as lines:
        for name, kind in (("a", listener), ("b", dialer)):
            cluster.add(name, security=SECURITIES[kind](made, name, tmp_path))
        cluster.until(lambda: len({line["node"] for line in lines}) == 2)
    for name, said in (("a", listener_says), ("b", dialer_says)):
        line = next(line for line in lines if line["node"] == name)
        assert (line["event"], line["log_level"]) == ("peer refused", "warning")
        assert line["reason"].startswith(said)
        assert said.partition(": ")[0].partition(",")[0] in page
        assert "_ssl.c" not in line["reason"]


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_probe_of_the_port_is_no_warning_and_half_a_hello_is_one(
    cluster: Cluster, made: Path, is_secure: bool
) -> None:
    """A port that is opened and closed again, with FIN or RST, without a byte."""
    network = cluster.add("a", security=tls(made, "a") if is_secure else None)

    def closed(*, sends: bytes = b"", resets: bool = False) -> str:
        with dial(cluster) as stranger:
            cluster.until(lambda: len(network._strangers) == 1)
            host, port = stranger.getsockname()
            stranger.sendall(sends)
            if resets:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        cluster.until(lambda: not network._strangers)
        return f"{host}:{port}"

    with structlog.testing.capture_logs() as lines:
        closed()
        closed(resets=True)
        assert lines == [] and network.stats.refused_handshakes == 0
        half = b"\x16\x03\x01\x00" if is_secure else b"QW" + bytes(40)
        address = closed(sends=half)
    [line] = lines
    assert (line["event"], line["log_level"], line["address"]) == ("peer refused", "warning", address)
    assert "peer" not in line, "it has no name yet"
    assert network.stats.refused_handshakes == 1


def test_a_wrong_file_for_members_is_refused_and_the_old_one_stays(made: Path, tmp_path: Path) -> None:
    own, other = made / "own", made / "other"
    files = [tmp_path / name for name in ("one.pem", "one.key", "ca.pem")]
    for file, source in zip(files, (own / "a.pem", own / "a.key", own / "ca.pem"), strict=True):
        file.write_bytes(source.read_bytes())
    found = TlsSecurity(*files)
    for file, content in (
        (files[0], b"rubbish"),
        (files[1], (other / "a.key").read_bytes()),
        (files[2], b"rubbish"),
        (files[2], b""),
    ):
        right = file.read_bytes()
        taken = found._content
        file.write_bytes(content)
        with pytest.raises(OSError):
            found.prepare(*files)
        with structlog.testing.capture_logs() as told:
            found.renew()
            found.renew()
        assert found._content is taken
        assert len(told) == 1, "each new connection looks at the files"
        file.write_bytes(right)
    assert not found.prepare(*files)()
    assert found.prepare(other / "a.pem", other / "a.key", other / "ca.pem")()


def test_files_with_other_names_are_the_ones_that_are_looked_at(made: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.pem", "one.key", "ca.pem")]

    def put(authority: str) -> None:
        for file, name in zip(files, ("a.pem", "a.key", "ca.pem"), strict=True):
            file.write_bytes((made / authority / name).read_bytes())

    put("other")
    found = tls(made, "a")
    assert found.prepare(*files)()
    taken = found._content
    with structlog.testing.capture_logs() as told:
        found.renew()
    assert found._content is taken and told == []
    put("own")
    found.renew()
    assert found._content is not taken


@pytest.mark.parametrize("names", [("a", "ca"), ("ca", "a")], ids=["certificate first", "authority first"])
def test_a_certificate_and_an_authority_that_do_not_fit_are_not_used(
    made: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    """The other members would refuse the certificate. When the second one has come, both are used."""
    files = (tmp_path / "a.pem", tmp_path / "a.key", tmp_path / "ca.pem")

    def put(authority: str, *wanted: str) -> None:
        for file in files:
            if file.stem in wanted:
                file.write_bytes((made / authority / file.name).read_bytes())

    put("own", *names)
    found = TlsSecurity(*files)
    taken = found._content
    put("other", names[0])
    with pytest.raises(OSError, match=f"members would refuse {files[0]} with the authority {files[2]}: "):
        found.prepare(*files)
    with structlog.testing.capture_logs() as told:
        found.renew()
    assert found._content is taken
    assert "members would refuse" in told[0]["error"]
    put("other", names[1])
    found.renew()
    assert found._content is not taken
    found.meet_itself()


def test_the_steps_to_another_authority_are_taken(made: Path, tmp_path: Path) -> None:
    """As docs/security.md describes them."""
    own, other, both = made / "own", made / "other", tmp_path / "both.pem"
    both.write_bytes((own / "ca.pem").read_bytes() + (other / "ca.pem").read_bytes())
    found = tls(made, "a")
    assert found.prepare(own / "a.pem", own / "a.key", both)()
    assert found.prepare(other / "a.pem", other / "a.key", both)()
    assert found.prepare(other / "a.pem", other / "a.key", other / "ca.pem")()


def test_files_that_fit_no_worse_than_those_in_use_are_taken(made: Path, tmp_path: Path) -> None:
    """A certificate may become valid, and a member whose certificate is refused has nothing to keep."""
    own, other = made / "own", made / "other"
    found = tls(made, "a")
    tomorrow = issue(own, tmp_path, first_day=1, last_day=3)
    assert found.prepare(*tomorrow, own / "ca.pem")()
    expired = issue(own, tmp_path / "past", first_day=-3, last_day=-1)
    assert tls(made, "a").prepare(*expired, own / "ca.pem")()
    assert found.prepare(other / "a.pem", other / "a.key", own / "ca.pem")()


def test_the_end_of_a_file_is_that_of_the_certificate_that_ends_first(made: Path, tmp_path: Path) -> None:
    create(["a"], tmp_path / "short", 3)
    short, own = (folder / "a.pem" for folder in (tmp_path / "short", made / "own"))
    ends = [end_of(file.read_bytes()) for file in (short, own)]
    assert ends[1] - ends[0] >= 26 * 86_400
    assert end_of(own.read_bytes() + short.read_bytes()) == ends[0]
    with pytest.raises(ValueError):
        end_of(b"rubbish")
    found = tls(tmp_path, "a", "short")
    assert found.end() == ends[0]
    create(["a"], tmp_path / "short", 30)
    assert found.end() > ends[0], "renewed files are taken first"
