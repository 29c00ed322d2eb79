"""A certificate authority of our own and one server certificate, for TLS without anyone's help.

Stock clients send credentials over https or loopback only, so a proxy on any other address needs
a certificate the sandbox trusts: `ca.pem` goes into the sandbox, `server.pem` and `server.key` to
the proxy. Idempotent: what is still good is kept, so sandboxes keep trusting what they have.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from daypass_broker import files

_CA_LIFE = datetime.timedelta(days=3650)
_SERVER_LIFE = datetime.timedelta(days=90)
_RENEW_BEFORE = datetime.timedelta(days=7)
_BACKDATE = datetime.timedelta(hours=1)  # a sandbox's clock may be behind ours


class TlsError(Exception):
    """The TLS files cannot be read or written; the message says which."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Where the files are; `renewed` tells whether the server certificate is a new one."""

    ca_file: Path
    cert_file: Path
    key_file: Path
    renewed: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure(directory: Path, hosts: Sequence[str], now: float) -> TlsMaterial:
    """Make or keep CA and server certificate for `hosts` (names or IP addresses).

    A certificate is made anew when it is missing, names other hosts, does not belong to the CA, or
    ends within 7 days of `now` (epoch seconds). Raises TlsError.
    """
    if not hosts:
        raise TlsError("no host given: name at least one")
    moment = datetime.datetime.fromtimestamp(now, tz=datetime.UTC)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    try:
        files.make_private_dir(directory)
        authority = _load(directory, "ca")
        if authority is None or not _lasts(authority.certificate, moment):
            authority = _make_authority(moment)
            _store(directory, "ca", authority)
        server = _load(directory, "server")
        keep = server is not None and _is_good(server.certificate, authority, names, moment)
        if not keep:
            _store(directory, "server", _make_server(authority, names, moment))
    except OSError as error:
        raise TlsError(f"cannot use {directory}: {error.strerror}") from error
    cert_file, key_file = directory / "server.pem", directory / "server.key"
    return TlsMaterial(directory / "ca.pem", cert_file, key_file, renewed=not keep)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise TlsError(f"host {host!r} is neither a name nor an address") from None


def _lasts(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    begun = certificate.not_valid_before_utc <= now
    return begun and certificate.not_valid_after_utc - now > _RENEW_BEFORE


def _is_good(
    certificate: x509.Certificate,
    authority: _Pair,
    names: x509.SubjectAlternativeName,
    now: datetime.datetime,
) -> bool:
    try:
        certificate.verify_directly_issued_by(authority.certificate)
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # whatever is odd about an old certificate, a new one cures it
        return False
    return _lasts(certificate, now) and set(named) == set(names)


def _make_authority(now: datetime.datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name keeps two authorities apart in a store that holds both.
    serial = x509.random_serial_number()
    name = _name(f"daypass CA {serial % 2**32:08x}")
    usage = _key_usage(signs_certificates=True)
    builder = (
        _builder(name, name, key.public_key(), serial, now, _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _make_server(
    authority: _Pair, names: x509.SubjectAlternativeName, now: datetime.datetime
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(_SERVER_LIFE, authority.certificate.not_valid_after_utc - now)
    serial = x509.random_serial_number()
    issuer = authority.certificate.subject
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name("daypass proxy"), issuer, key.public_key(), serial, now, life)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(directory: Path, stem: str) -> _Pair | None:
    """Read a pair; None when there is no certificate yet.

    A pair that does not fit together is an error: replacing the authority silently would take the
    trust of every sandbox with it. The key is written first, so a crash leaves no such pair.
    """
    if not (directory / f"{stem}.pem").exists():
        return None
    try:
        certificate = x509.load_pem_x509_certificate((directory / f"{stem}.pem").read_bytes())
        key = serialization.load_pem_private_key((directory / f"{stem}.key").read_bytes(), None)
    except (FileNotFoundError, ValueError, TypeError):
        key = None
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or certificate.public_key() != key.public_key()
    ):
        raise TlsError(
            f"{stem}.pem and {stem}.key in {directory} do not fit: restore or delete both"
        )
    return _Pair(certificate, key)


def _store(directory: Path, stem: str, pair: _Pair) -> None:
    key = pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    files.write_private(directory / f"{stem}.key", key)
    certificate = pair.certificate.public_bytes(serialization.Encoding.PEM)
    files.write_private(directory / f"{stem}.pem", certificate)
