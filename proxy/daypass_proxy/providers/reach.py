"""What a call may reach through the provider: hosts within the domains of its scope.

Asked by `scope_check` for the URLs and domains of a body (attack rows 34, 35). Each is compared
with all domains of the scope at once, and `MAX_REACHED` bounds how many there are (attack row 17).
"""

import re
from functools import lru_cache
from urllib.parse import urlsplit

MAX_REACHED = 600
"""Domains and URLs in all of a body."""
_HOST = re.compile(r"[a-z0-9._*-]{1,253}")
_LONGEST_DOMAIN = 2048
_URL = re.compile(r"[!-\[\]-~]{1,2048}")  # ASCII without blanks and backslash


def url_allowed(value: object, domains: tuple[str, ...]) -> bool:
    """Say whether `value` is an https URL at one of `domains` or below one."""
    # Before it is parsed: urlsplit() drops blanks, and is quadratic over long non-ASCII text.
    if not isinstance(value, str) or not _URL.fullmatch(value):
        return False
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
    except ValueError:
        return False
    return parts.scheme == "https" and "@" not in parts.netloc and domain_allowed(host, domains)


def domain_allowed(domain: str, domains: tuple[str, ...]) -> bool:
    """Say whether `domain` is one of `domains` or below one; a path would narrow further."""
    host = domain[:_LONGEST_DOMAIN].partition("/")[0].lower()
    # Plain host names only: with "#", "?" or look-alikes in it, others may read another host.
    if not _HOST.fullmatch(host):
        return False
    return f".{host}".endswith(_suffixes(domains))


@lru_cache(maxsize=64)
def _suffixes(domains: tuple[str, ...]) -> tuple[str, ...]:
    """Return how a host, with a dot in front, ends that is one of `domains` or below one."""
    return tuple(f".{domain}" for domain in domains)
