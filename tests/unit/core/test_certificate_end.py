"""The end of a certificate, as the metrics show it."""

from pathlib import Path

from daypass_broker import tls
from daypass_core.certificate_end import ends_at

NOW = 1_796_000_000.0


def test_the_end_is_that_of_the_server_certificate(tmp_path: Path) -> None:
    """It is the moment from which clients refuse it, and no file and no certificate have none."""
    made = tls.ensure(tmp_path, ["localhost"], NOW)
    end = ends_at(made.cert_file)
    assert end is not None
    assert NOW < end < NOW + 3 * 366 * 86400
    assert tls.ensure(tmp_path, ["localhost"], end + 1).renewed
    assert ends_at(None) is None
    assert ends_at(tmp_path / "missing.pem") is None
    assert ends_at(made.key_file) is None
