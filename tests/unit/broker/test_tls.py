"""Our own CA: a handshake that holds, files nobody else reads, certificates kept while good."""

import contextlib
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509

from daypass_broker import tls
from tests.support import NOW

DAY = 24 * 3600
HOSTS = ["proxy.daypass.test", "127.0.0.1", "::1"]


def handshake(made: tls.TlsMaterial, name: str) -> str:
    """Do a TLS handshake in memory, verifying `name` against the CA file only."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(made.cert_file, made.key_file)
    client_side = ssl.create_default_context(cafile=str(made.ca_file))
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for end in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return client.version() or ""


@pytest.fixture(scope="module")
def now() -> float:
    """The real time: handshakes look at the real clock."""
    return time.time()


@pytest.mark.parametrize("name", HOSTS)
def test_clients_that_trust_the_ca_trust_the_server(tmp_path: Path, now: float, name: str) -> None:
    """A strict client with only our CA accepts the server under each name and address."""
    made = tls.ensure(tmp_path, HOSTS, now)
    assert handshake(made, name) == "TLSv1.3"


def test_other_names_are_refused(tmp_path: Path, now: float) -> None:
    """The certificate holds for the hosts it was made for and no other."""
    made = tls.ensure(tmp_path, HOSTS, now)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made, "other.test")


def test_all_files_are_the_owners_alone(tmp_path: Path) -> None:
    """Every file has mode 0600, the directory 0700."""
    tls.ensure(tmp_path / "tls", HOSTS, NOW)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert found == dict.fromkeys(("ca.pem", "ca.key", "server.pem", "server.key"), 0o600)
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    """What is still good is kept byte for byte, whatever the order of the hosts."""
    assert tls.ensure(tmp_path, HOSTS, NOW).renewed
    before = contents(tmp_path)
    assert not tls.ensure(tmp_path, list(reversed(HOSTS)), NOW + 80 * DAY).renewed
    assert contents(tmp_path) == before


def test_the_server_certificate_is_renewed_in_its_last_week(tmp_path: Path) -> None:
    """With 7 days left the server certificate is made anew, under the CA sandboxes know."""
    tls.ensure(tmp_path, HOSTS, NOW)
    before = contents(tmp_path)
    assert tls.ensure(tmp_path, HOSTS, NOW + 83 * DAY).renewed
    after = contents(tmp_path)
    assert after["server.pem"] != before["server.pem"]
    assert after["ca.pem"] == before["ca.pem"]


def test_other_hosts_make_another_certificate(tmp_path: Path) -> None:
    """Another list of hosts renews the server certificate and keeps the CA."""
    tls.ensure(tmp_path, HOSTS, NOW)
    ca = contents(tmp_path)["ca.pem"]
    assert tls.ensure(tmp_path, ["localhost"], NOW).renewed
    assert contents(tmp_path)["ca.pem"] == ca


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    """Near the CA's end the server certificate ends with it, and then both are made anew."""
    tls.ensure(tmp_path, HOSTS, NOW)
    tls.ensure(tmp_path, HOSTS, NOW + 3600 * DAY)
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    assert server.not_valid_after_utc <= ca.not_valid_after_utc
    before = contents(tmp_path)["ca.pem"]
    tls.ensure(tmp_path, HOSTS, NOW + 3645 * DAY)
    assert contents(tmp_path)["ca.pem"] != before


def test_the_server_key_cannot_certify(tmp_path: Path) -> None:
    """The CA may sign server certificates and no further CA; the server may sign nothing."""
    tls.ensure(tmp_path, HOSTS, NOW)
    for stem, is_ca, length in (("ca", True, 0), ("server", False, None)):
        certificate = x509.load_pem_x509_certificate((tmp_path / f"{stem}.pem").read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert (found.critical, found.value.ca, found.value.path_length) == (True, is_ca, length)


@pytest.mark.parametrize("broken", ["ca.key", "ca.pem", "server.key", "server.pem"])
def test_a_damaged_pair_is_told_not_replaced(tmp_path: Path, broken: str) -> None:
    """A damaged file is an error: replacing the CA silently would take every sandbox's trust."""
    tls.ensure(tmp_path, HOSTS, NOW)
    (tmp_path / broken).write_bytes(b"damaged")
    with pytest.raises(tls.TlsError, match="do not fit"):
        tls.ensure(tmp_path, HOSTS, NOW)


def test_a_ca_without_its_key_is_told(tmp_path: Path) -> None:
    """A CA certificate whose key is gone is an error too."""
    tls.ensure(tmp_path, HOSTS, NOW)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(tls.TlsError, match=r"ca\.pem and ca\.key"):
        tls.ensure(tmp_path, HOSTS, NOW)


@pytest.mark.parametrize("hosts", [[], ["bücher.example"]])
def test_bad_hosts_are_told(tmp_path: Path, hosts: list[str]) -> None:
    """No host, or one that is neither a name nor an address, is refused."""
    with pytest.raises(tls.TlsError, match="host"):
        tls.ensure(tmp_path, hosts, NOW)


def test_an_unusable_directory_is_told(tmp_path: Path) -> None:
    """A directory that cannot be made is one sentence naming it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(tls.TlsError, match="cannot use"):
        tls.ensure(tmp_path / "file" / "tls", HOSTS, NOW)


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    """While files are written anew, whoever reads one finds a whole one."""
    tls.ensure(tmp_path, HOSTS, NOW)
    stop, torn = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            data = (tmp_path / "server.pem").read_bytes()
            if not data.endswith(b"-----END CERTIFICATE-----\n"):
                torn.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(10):
        tls.ensure(tmp_path, [f"host{number}.test"], NOW)
    stop.set()
    reader.join(5)
    assert torn == []
