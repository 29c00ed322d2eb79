"""The raw requests of `raw/*.json`: exact bytes on a client connection, and what must happen.

Each entry has `send`: pieces in latin-1, where <token>, <other> (another tenant's), <forged> and
<half> stand for credentials; {"repeat", "times"}; {"drip"}: byte by byte; {"await"}: read that
interim answer first; {"end"}: shut the sending side. Then what must happen: `status` of the one
answer (null: closed without one); `connection` "open" for another request, "closed", or "awaits
the body"; `as`: whose credential authentication accepted; `upstream`: what the provider got.

Rare: `interim` true when "100 Continue" comes first, null when it may; `head`: no body is answered;
`error`: its type, "oauth" in the words of RFC 6749; `may_cut`: whoever sends this much may lose the
answer; `limits`: the limits to set low, so that the test does not wait for the real ones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "raw"


@dataclass(frozen=True)
class Upstream:
    """What the provider must have got: `headers` among others, none of those in `absent`."""

    method: str
    target: str
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raw:
    """One entry."""

    theme: str
    name: str
    why: str
    send: tuple[Any, ...]
    status: int | None
    connection: str
    accepted: str | None
    upstream: Upstream | None
    interim: bool | None = False
    head: bool = False
    error: str = ""
    may_cut: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its name among all."""
        return f"{self.theme}: {self.name}"


def load() -> list[Raw]:
    """Every entry of every file; raises for a field that is not known."""
    return [
        _entry(path.stem, dict(entry))
        for path in sorted(FOLDER.glob("*.json"))
        for entry in json.loads(path.read_text("utf-8"))["requests"]
    ]


def _entry(theme: str, entry: dict[str, Any]) -> Raw:
    upstream = entry.pop("upstream")
    accepted = entry.pop("as")
    if upstream is not None:
        upstream = Upstream(**upstream)
    entry["send"] = tuple(entry["send"])
    return Raw(theme=theme, accepted=accepted, upstream=upstream, **entry)


def fill(text: str, credentials: Mapping[str, str]) -> bytes:
    """The bytes of a piece, with credentials in their places."""
    for name, credential in credentials.items():
        text = text.replace(f"<{name}>", credential)
    return text.encode("latin-1")


def forge(token: str) -> str:
    """A token whose signature is not that of its content."""
    head, payload, signature = token.split(".")
    return f"{head}.{payload}.{signature[::-1]}"
