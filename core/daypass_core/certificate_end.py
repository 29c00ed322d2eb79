"""When a listener's certificate ends, for the metrics of both services.

Read from the file at each scrape: what counts is the file that the next start or reload will use.
"""

from pathlib import Path

from cryptography import x509


def ends_at(file: Path | None) -> float | None:
    """Return the moment (epoch seconds) at which the first certificate of a PEM file ends.

    None without a file, and for one that cannot be read or holds none: a scrape must not fail.
    """
    if file is None:
        return None
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found.not_valid_after_utc.timestamp()
