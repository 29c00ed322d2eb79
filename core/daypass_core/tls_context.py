"""The certificate of a listener, and its renewal while the service runs.

`server` asks for the files anew every minute and on SIGHUP. What has changed and can be used is
what new connections get; open ones go on. A certificate that cannot be used is told and the old one
kept: cert-manager and others replace files one after the other, and an expired certificate helps
nobody more than a working one.
"""

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daypass_core.log import event, get_logger

log = get_logger(__name__)

LOOK_SECONDS = 60.0
"""How often the files are looked at; those who renew do so days before the end."""
_Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a listener: certificate chain and private key."""

    cert: Path
    key: Path


class BadCertificate(Exception):
    """The files hold no certificate and its key; the message is one sentence for a person."""


class Certificate:
    """What one listener shows: an SSL context that stays the same while its content may change."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises BadCertificate."""
        self._files = files
        self._stamp = self._look()
        self._refused: tuple[_Stamp, _Stamp] | None = None
        self.context = _load(files)

    def renew(self) -> bool:
        """Take what lies in the files now, if it is another; say whether it was taken."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        try:
            _load(self._files)  # by itself first: a pair that does not fit would spoil the context
            self.context.load_cert_chain(self._files.cert, self._files.key, password=_no_password)
        except (BadCertificate, OSError, ValueError) as error:
            if stamp != self._refused:
                reason = str(error) if isinstance(error, BadCertificate) else "it changed meanwhile"
                event(log, "certificate_kept", level=logging.ERROR, reason=reason)
            self._refused = stamp
            return False
        self._stamp, self._refused = stamp, None
        event(log, "certificate_renewed", cert=str(self._files.cert))
        return True

    def _look(self) -> tuple[_Stamp, _Stamp]:
        """Return what tells these files from others; a link counts as what it leads to."""
        return _stamp(self._files.cert), _stamp(self._files.key)


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def renew_all(certificates: Sequence[Certificate]) -> None:
    """Renew each of them that has changed."""
    for one in certificates:
        one.renew()


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password would have it asked for at the terminal.
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a certificate and its key"
        if isinstance(error, ssl.SSLError | ValueError):
            reason = "not a certificate and its key"
        raise BadCertificate(
            f"cannot use TLS files {files.cert} and {files.key}: {reason}"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("a key with a password is of no use to a service")
