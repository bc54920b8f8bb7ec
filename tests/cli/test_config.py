"""A node's configuration: where values come from, and what an operator is told."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Literal

import pytest

from quorum.config import NodeConfig, examine, load, reference
from quorum.errors import ConfigError
from support.repository import ROOT

MEMBERS = """
[members.a]
peer = "127.0.0.1:7401"
client = "127.0.0.1:7400"
[members.b]
peer = "127.0.0.2:7401"
client = "127.0.0.2:7400"
"""


SMALL = ("max_message_bytes", "max_batch_bytes")
"""Settings with a bound of their own."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import os

    for name in sorted(os.environ):
        if name.startswith("QUORUM_"):
            monkeypatch.delenv(name)
    return tmp_path


def write(folder: Path, head: str = "", members: str = MEMBERS) -> Path:
    file = folder / "node.toml"
    basic = f'name = "a"\ndata_dir = "{folder}/data"\nsecret_file = "{folder}/secret"\n'
    file.write_text(basic + head + members, encoding="utf-8")
    return file


def refused(file: Path, *words: str, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, flags)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def test_a_file_is_enough(folder: Path) -> None:
    config = load(write(folder, 'cluster = "orders"\nlease_ms = 2000\n'))
    assert (config.name, config.cluster, config.lease_ms) == ("a", "orders", 2000)
    assert config.members["b"].peer == "127.0.0.2:7401"
    assert config.client_address == "127.0.0.1:7400"
    assert config.data_dir == folder / "data"


def test_flags_go_before_the_environment_and_that_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(folder, "lease_ms = 1000\nqueue_groups = 4\nheartbeat_ms = 50\n")
    monkeypatch.setenv("QUORUM_LEASE_MS", "2000")
    monkeypatch.setenv("QUORUM_QUEUE_GROUPS", "5")
    config = load(file, {"lease_ms": 3000, "log_level": None})
    assert (config.lease_ms, config.queue_groups, config.heartbeat_ms) == (3000, 5, 50)
    assert config.log_level == "info"


def test_the_environment_alone_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUM_NAME", "a")
    monkeypatch.setenv("QUORUM_DATA_DIR", str(folder))
    monkeypatch.setenv("QUORUM_SECRET_FILE", str(folder / "s"))
    monkeypatch.setenv("QUORUM_MEMBERS", '{"a": {"peer": "h:1", "client": "h:2"}}')
    monkeypatch.setenv("QUORUM_ALLOW_PLAIN_TEXT", "true")
    assert load().members["a"].client == "h:2"


def test_listening_elsewhere_than_the_public_address(folder: Path) -> None:
    head = 'listen = "0.0.0.0:7400"\nallow_plain_text = true\n'
    assert load(write(folder, head)).client_address == "0.0.0.0:7400"


OF_CLIENTS = "tls_certificate_file and tls_key_file"
OF_MEMBERS = "peers_certificate_file, peers_key_file and peers_ca_file"
REACHED = {
    "clients": ("", {"client": "a.example:7400"}, "a.example:7400 (clients)", f"{OF_CLIENTS} (clients)"),
    "clients, elsewhere": (
        'listen = "0.0.0.0:7400"\n',
        {},
        "0.0.0.0:7400 (clients)",
        f"{OF_CLIENTS} (clients)",
    ),
    "members": ("", {"peer": "10.0.0.1:7401"}, "10.0.0.1:7401 (members)", f"{OF_MEMBERS} (members)"),
    "HTTP": ('http_listen = "[::]:7480"\n', {}, "[::]:7480 (HTTP)", f"{OF_CLIENTS} (HTTP)"),
    "all": (
        'http_listen = "a.example:7480"\n',
        {"client": "a.example:7400", "peer": "a.example:7401"},
        "a.example:7400 (clients), a.example:7401 (members), a.example:7480 (HTTP)",
        f"{OF_CLIENTS} (clients and HTTP); {OF_MEMBERS} (members)",
    ),
}
"""Settings of the node, its own addresses, the ports that others reach, and the keys that give them TLS."""


def of_addresses(**own: str) -> str:
    """The members, a with these addresses in place of loopback ones."""
    addresses = {"peer": "127.0.0.1:7401", "client": "127.0.0.1:7400", **own}
    return "[members.a]\n" + "".join(f'{key} = "{address}"\n' for key, address in addresses.items())


@pytest.mark.parametrize("who", REACHED)
def test_a_port_that_others_reach_has_tls_or_is_allowed_plain_text(
    folder: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, own, ports, keys = REACHED[who]
    file = write(folder, head, of_addresses(**own))
    assert refused(file) == (
        f"{file}: ports that other machines reach have no TLS: {ports}; wanted: {keys}; or allow_plain_text = true on "
        "a network that encrypts by itself, such as a mesh or a VPN"
    )
    allowed = load(write(folder, f"{head}allow_plain_text = true\n", of_addresses(**own)))
    assert ", ".join(f"{address} ({who})" for who, address in allowed.readable_ports.items()) == ports
    refused(write(folder, f"{head}allow_plain_text = false\n", of_addresses(**own)), ports)
    monkeypatch.setenv("QUORUM_ALLOW_PLAIN_TEXT", "true")
    assert load(write(folder, head, of_addresses(**own))).readable_ports == allowed.readable_ports


def test_a_port_with_tls_needs_no_permission(folder: Path) -> None:
    head, own, *_ = REACHED["all"]
    clients = 'tls_certificate_file = "c.pem"\ntls_key_file = "c.key"\n'
    members = 'peers_certificate_file = "p.pem"\npeers_key_file = "p.key"\npeers_ca_file = "ca.pem"\n'
    text = refused(write(folder, head + clients, of_addresses(**own)), "a.example:7401 (members);")
    assert "7400" not in text and "7480" not in text
    text = refused(
        write(folder, head + members, of_addresses(**own)), "7400 (clients), a.example:7480 (HTTP);"
    )
    assert "7401" not in text
    assert load(write(folder, head + clients + members, of_addresses(**own))).readable_ports == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost"])
def test_a_loopback_address_needs_no_permission_for_plain_text(folder: Path, host: str) -> None:
    own = of_addresses(peer=f"{host}:1", client=f"{host}:2")
    assert load(write(folder, f'listen = "{host}:3"\nhttp_listen = "{host}:4"\n', own)).readable_ports == {}
    own = of_addresses(client="a.example:2")
    assert load(write(folder, f'listen = "{host}:3"\n', own)).readable_ports == {}, "clients reach a proxy"


def test_the_addresses_of_other_members_need_no_permission(folder: Path) -> None:
    others = '[members.b]\npeer = "b.example:7401"\nclient = "b.example:7400"\n'
    assert load(write(folder, members=of_addresses() + others)).readable_ports == {}


def test_an_unknown_key_is_refused_with_the_nearest_known_one(folder: Path) -> None:
    refused(write(folder, "leese_ms = 5\n"), "unknown key leese_ms", "did you mean lease_ms?")
    bad = MEMBERS + '[members.c]\npeer = "h:1"\nclient = "h:2"\nklient = "h:3"\n'
    refused(write(folder, members=bad), "members.c.klient", "did you mean client?")


def test_a_key_of_the_node_below_a_table_is_told_its_place(folder: Path) -> None:
    appended = MEMBERS + 'tls_certificate_file = "a.pem"\n'
    place = "tls_certificate_file is a key of the node: write it above the first table, [members.NAME]"
    refused(write(folder, members=appended), f".tls_certificate_file; {place}")


def test_all_findings_are_told_at_once(folder: Path) -> None:
    file = folder / "node.toml"
    file.write_text('name = "a b"\nlease_ms = 1\n', encoding="utf-8")
    text = refused(file, "name: 'a b' is not a name", "lease_ms", "members is missing", "data_dir is missing")
    assert len(text.splitlines()) == 5
    assert all(line.startswith(f"{file}: ") for line in text.splitlines())


def test_what_does_not_fit_together_is_told_with_keys_that_are_wrong_by_themselves(folder: Path) -> None:
    """A relation with a wrong key is left out: a default takes no part in it."""
    head = 'leese_ms = 5\nlease_ms = "soon"\nelection_timeout_min_ms = "x"\nelection_timeout_max_ms = 9000\n'
    head += 'heartbeat_ms = 9000\nhttp_listen = "127.0.0.1:7401"\ntls_key_file = "k"\n'
    text = refused(
        write(folder, head),
        "unknown key leese_ms; did you mean lease_ms?",
        "lease_ms is 'soon'; allowed: a whole number",
        "election_timeout_min_ms is 'x'; allowed: a whole number",
        "leader_fallback_ms is 1500; at least election_timeout_max_ms is needed, 9000",
        "http_listen is 127.0.0.1:7401; peer (127.0.0.1:7401) has this port already",
        "tls_certificate_file and tls_key_file belong together",
    )
    assert len(text.splitlines()) == 6
    assert all(line.startswith(f"{folder}/node.toml: ") for line in text.splitlines())


def test_a_finding_names_the_variable_or_the_flag_with_the_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUM_LEASE_MS", "soon")
    monkeypatch.setenv("QUORUM_LOG_LEVEL", "loud")
    file = write(folder, "heartbeat_ms = false\n")
    found = examine(file, {"log_level": "louder", "skip_entries": ("7",)}).wrong
    assert {tuple(each.split(" ")[:2]) for each in found} == {
        (f"{file}:", "heartbeat_ms"),
        ("QUORUM_LEASE_MS:", "lease_ms"),
        ("--log-level:", "log_level"),
        ("--skip-entry:", "skip_entries.0:"),
    }


def test_the_keys_that_are_right_can_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUM_QUEUE_GROUPS", "5")
    found = examine(write(folder, 'listen = "x"\nlog_level = "loud"\n'), {"name": "b"})
    assert found.config is not None
    assert (found.config.name, found.config.queue_groups, found.config.log_level) == ("b", 5, "info")
    assert found.unusable == {"listen", "log_level"}
    assert found.has("name", "members") and not found.has("name", "listen")
    assert examine(write(folder), {"name": "z"}).unusable == {"name"}
    assert not examine(folder / "none.toml").has("name")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("election_timeout_min_ms = 1000\n", ("election_timeout_min_ms is 1000", "election_timeout_max_ms")),
        ("heartbeat_ms = 400\n", ("heartbeat_ms is 400", "166")),
        ("leader_fallback_ms = 900\n", ("leader_fallback_ms is 900", "1000")),
        ("node_window_bytes = 1048576\n", ("session_window_bytes", "1048576")),
        ("max_message_bytes = 16777217\n", ("max_message_bytes", "16777216", "16777217")),
        ("max_log_bytes = 2097152\n", ("max_log_bytes is 2097152", "268435456")),
        ("max_queues = 0\n", ("max_queues is 0; allowed: 1 or more",)),
        ("node_window_bytes = 1.5\n", ("node_window_bytes is 1.5; allowed: a whole number",)),
        ("tls_key_file = true\n", ("tls_key_file is true; allowed: a path",)),
        (
            'log_level = "loud"\n',
            ("node.toml: log_level is 'loud'; allowed: 'debug', 'info', 'warning' or 'error'",),
        ),
        ('listen = "7400"\n', ("listen", "'7400' is not an address")),
        ('lease_ms = "soon"\n', ("lease_ms is 'soon'; allowed: a whole number",)),
    ],
)
def test_what_cannot_be_is_told_with_value_and_bound(folder: Path, head: str, words: tuple[str, ...]) -> None:
    refused(write(folder, head), *words)


def test_members_have_to_make_sense(folder: Path) -> None:
    refused(write(folder), "name is 'z'", "a, b", name="z")
    refused(write(folder, members=MEMBERS.replace("127.0.0.2", "127.0.0.1")), "127.0.0.1:7400 is given twice")
    refused(write(folder, members="[members]\n"), "members")
    refused(
        write(folder, members='[members.a]\npeer = "nowhere"\nclient = "h:1"\n'),
        "members.a.peer",
        "'nowhere'",
    )


def test_files_that_are_none(folder: Path) -> None:
    refused(folder / "nothing.toml", "there is no configuration file")
    file = folder / "bad.toml"
    file.write_text("name = ", encoding="utf-8")
    refused(file, "cannot be read")
    file.write_bytes(b"\xff\xfe")
    refused(file, "cannot be read")


@pytest.mark.parametrize("text", ["x = " + "[" * 5_000 + "]" * 5_000, "lease_ms = " + "9" * 5_000])
def test_a_file_beyond_what_the_reader_takes_is_none(folder: Path, text: str) -> None:
    refused(write(folder, text + "\n"), "cannot be read")


@pytest.mark.parametrize(
    "key",
    [name for name in NodeConfig.model_fields if name.endswith("_bytes") and name not in SMALL],
)
def test_bytes_that_no_message_can_hold_are_refused(folder: Path, key: str) -> None:
    load(write(folder, f"node_window_bytes = {1 << 60}\nmax_log_bytes = {1 << 60}\n"))
    for value in ((1 << 60) + 1, 1 << 64, 10**30):
        refused(write(folder, f"{key} = {value}\n"), f"{key} is {value}; allowed: ", " or less")


def test_a_variable_that_is_no_json_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wanted in (("MEMBERS", "a JSON object"), ("SKIP_ENTRIES", 'a JSON array, such as ["0:1234"]')):
        with monkeypatch.context() as changed:
            changed.setenv(f"QUORUM_{name}", "0:1")
            refused(write(folder), f"QUORUM_{name} is not {wanted}")
    monkeypatch.setenv("QUORUM_SKIP_ENTRIES", '["0:1"]')
    assert load(write(folder)).skipped_places == ((0, 1),)


def test_the_secret_comes_from_its_file(folder: Path) -> None:
    config = load(write(folder))
    with pytest.raises(ConfigError, match="cannot be read"):
        config.read_secret()
    config.secret_file.write_bytes(b"0123456789abcdef0123456789abcde\n")
    config.secret_file.chmod(0o600)
    with pytest.raises(ConfigError, match="holds 31 bytes; at least 32"):
        config.read_secret()
    config.secret_file.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    assert config.read_secret() == b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o444])
def test_a_secret_that_others_can_use_is_refused(folder: Path, mode: int) -> None:
    config = load(write(folder))
    config.secret_file.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    config.secret_file.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}, so that others .* allowed: 0400 or 0600"):
        config.read_secret()
    config.secret_file.chmod(0o400)
    assert len(config.read_secret()) == 32


def test_no_key_can_hold_the_secret() -> None:
    assert [name for name in NodeConfig.model_fields if "secret" in name] == ["secret_file"]


def test_the_page_says_what_the_model_says() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert reference() in page, "put what quorum.config.reference() answers into docs/configuration.md"


def test_the_example_of_the_page_is_a_configuration_with_tls(folder: Path) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    example = page[page.index('    name = "node-1"\n') : page.index("\n- Keys of the node")]
    file = folder / "node.toml"
    file.write_text(textwrap.dedent(example), encoding="utf-8")
    config = load(file)
    assert len(config.members) == 3
    assert config.readable_ports == {} and not config.allow_plain_text


def test_the_security_page_shows_the_error_about_plain_text(folder: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    own = of_addresses(peer="node-1.example:7401", client="node-1.example:7400")
    assert "    error: " + refused(write(folder, members=own)).replace(f"{folder}/", "") + "\n" in page


@pytest.mark.parametrize("line_format", ["text", "json"])
def test_a_logged_traceback_shows_no_local_variables(
    capsys: pytest.CaptureFixture[str], line_format: Literal["text", "json"]
) -> None:
    import structlog

    from quorum.cli.commands.serve import log_to_stderr

    def fail(secret: str) -> None:
        raise ValueError("no")

    try:
        log_to_stderr("info", line_format)
        try:
            fail("open " + "sesame")
        except ValueError as error:
            structlog.get_logger().critical("stops", exc_info=error)
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr()
    assert written.out == ""
    assert "ValueError: no" in written.err
    assert "Traceback" in written.err
    quote = '\\"' if line_format == "json" else '"'
    assert "sesame" not in written.err.replace(f"{quote}open {quote} + {quote}sesame{quote}", "")
    if line_format == "json":
        [line] = written.err.splitlines()
        said = json.loads(line)
        assert (said["event"], said["level"]) == ("stops", "critical")


def test_a_log_line_has_no_character_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    """Strangers choose the name of a log-in. Before, a name without a space came to the terminal as it was."""
    import structlog

    from quorum.cli.commands.serve import log_to_stderr

    names = ("\x1b[2J", "\x9b2J", "\x07", "a\u202eb", "a\u2028b", "\x1b[2J and a space", "plain", "\xe9t\xe9")
    try:
        log_to_stderr("info")
        for name in names:
            structlog.get_logger().warning("log-in failed", user=name)
    finally:
        structlog.reset_defaults()
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("user=")[2] for line in lines] == [*map(repr, names[:6]), *names[6:]]
    assert all(line.isprintable() for line in lines)
