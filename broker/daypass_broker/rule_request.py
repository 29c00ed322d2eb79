"""`POST /v1/rules`, the asking half: the body read strictly, its template filled in.

A template is data (`rule_templates.json`): what a platform's assertions look like. Which claims
will never mean somebody else is decided by the issuer that a rule names, not by the template it
asks for: a rule for GitHub's issuer needs one of GitHub's ids, however it is written down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

from daypass_broker.attest import jws
from daypass_broker.attest.jws import Key
from daypass_broker.fields import Fields
from daypass_broker.rule import AfterDeadline, KeySource, Kind, Replay, Rule, Scalar
from daypass_core.jwks import thumbprint

MAX_LIFE_SECONDS = 176_400
"""Two days and an hour: longer than the assertions of any platform that has a template."""
MAX_SANDBOXES = 100_000
_SANDBOXES = 1000
_MAX_CLAIMS = 32
_MAX_VALUES = 64
_MAX_TEXT = 512
_MAX_IDENTITY = 8
_PRINTABLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
# A beginning that names somebody: a trust domain and at least one whole part of the path.
_WHOLE_PARTS = re.compile(r"spiffe://[a-z0-9._-]+(/[A-Za-z0-9._-]+)+/\*")
_CHECKED_ANYWAY = ("iss", "aud", "exp", "iat", "nbf", "jti")
_OURS = "is this broker: its own tokens are no workload's identity"

Template = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Own:
    """What is ours and can be in nobody's rule: our URLs, and the ids of our signing keys."""

    urls: tuple[str, ...]
    key_ids: frozenset[str]


@cache
def templates() -> Mapping[str, Template]:
    """Return the ready-made rules by name."""
    text = resources.files("daypass_broker").joinpath("rule_templates.json").read_text("utf-8")
    found: dict[str, Template] = json.loads(text)
    return found


def read(body: object, rule_id: str, own: Own) -> Rule:
    """Read a decoded body into a rule; raises FieldError naming the field."""
    fields = Fields(body)
    asked = fields.text("template", choices=tuple(templates()))
    known: str | None = templates()[asked or "oidc"].get("issuer")
    issuer = fields.must("issuer", _printable(fields, "issuer") or known)
    template = templates()[_platform(fields, issuer, asked)]
    audience = _printable(fields, "audience") or template.get("audience")
    rule = Rule(
        id=rule_id,
        name=fields.must("name", fields.name("name")),
        tenant=fields.must("tenant", fields.name("tenant")),
        profile=fields.must("profile", fields.name("profile")),
        kind=Kind(template["kind"]),
        issuer=issuer,
        audience=fields.must("audience", audience),
        conditions=_conditions(fields, template),
        identity=_identity(fields) or tuple(template["identity"]),
        keys=_keys(fields, own),
        replay=Replay(fields.text("replay", choices=tuple(Replay)) or Replay.UNTIL_EXP),
        after_deadline=AfterDeadline(
            fields.text("after_deadline", choices=tuple(AfterDeadline))
            or template.get("after_deadline", AfterDeadline.REFUSE)
        ),
        max_life_s=fields.integer("max_life_seconds", least=60, most=MAX_LIFE_SECONDS)
        or template["max_life_seconds"],
        max_sandboxes=fields.integer("max_sandboxes", least=1, most=MAX_SANDBOXES) or _SANDBOXES,
    )
    fields.done()
    _check_issuer(fields, rule, own)
    return rule


def _platform(fields: Fields, issuer: str, asked: str | None) -> str:
    """Return the template that decides: the issuer's own, else the one asked for, else `oidc`."""
    for name, template in templates().items():
        if any(re.fullmatch(pattern, issuer) for pattern in template["issuers"]):
            # A cluster of a cloud may be asked itself as well, from inside.
            if asked not in (None, name, "kubernetes"):
                raise fields.error("template", f"must be {name} for this issuer, or left out")
            return asked or name
    if asked is not None and templates()[asked]["issuers"]:
        raise fields.error("issuer", f"is none of template {asked}")
    return asked or "oidc"


def _conditions(fields: Fields, template: Template) -> dict[str, tuple[Scalar, ...]]:
    """Take the conditions, one of them on a claim of the platform that never changes hands."""
    given = fields.must("conditions", fields.raw("conditions"))
    if not isinstance(given, dict) or not 1 <= len(given) <= _MAX_CLAIMS:
        raise fields.error("conditions", f"must be an object of 1 to {_MAX_CLAIMS} claims")
    found = {
        _claim(fields, "conditions", name): _values(fields, f"conditions.{name[:64]}", value)
        for name, value in given.items()
    }
    immutable: Mapping[str, str] = template["immutable"]
    for path, form in immutable.items():
        if path in found and all(_pins(value, form) for value in found[path]):
            return found
    wanted = ", or ".join(f"{path} {_PINNED[form]}" for path, form in immutable.items())
    raise fields.error("conditions", f"must pin a claim that never changes hands: {wanted}")


_PINNED = {
    "exact": "in full",
    "path": "in full or as spiffe://… up to a whole part of its path and *",
}


def _pins(value: Scalar, form: str) -> bool:
    if isinstance(value, str) and value.endswith("*"):
        return form == "path" and _WHOLE_PARTS.fullmatch(value) is not None
    return not isinstance(value, bool)


def _values(fields: Fields, path: str, value: object) -> tuple[Scalar, ...]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= _MAX_VALUES:
        raise fields.error(path, f"must be a value or a list of 1 to {_MAX_VALUES} values")
    for item in values:
        if type(item) not in (str, int, bool):
            raise fields.error(path, "must be text, a whole number, true or false")
        if isinstance(item, str) and not 0 < len(item) <= _MAX_TEXT:
            raise fields.error(path, f"must have 1 to {_MAX_TEXT} characters")
        if isinstance(item, str) and ("*" in item[:-1] or item == "*"):
            raise fields.error(path, "* may only end a text that begins with something")
    return tuple(values)


def _identity(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("identity")
    if value is None:
        return ()
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_IDENTITY:
        raise fields.error("identity", f"must be a list of 1 to {_MAX_IDENTITY} claims")
    found = tuple(_claim(fields, "identity", name) for name in value)
    if len(set(found)) != len(found):
        raise fields.error("identity", "names a claim twice")
    return found


def _claim(fields: Fields, field: str, name: object) -> str:
    if not isinstance(name, str) or len(name) > _MAX_TEXT or not _PRINTABLE.fullmatch(name):
        raise fields.error(field, "claims must be printable ASCII without blanks")
    if name.removeprefix("/") in _CHECKED_ANYWAY:
        raise fields.error(field, f"{name} is checked anyway, and names no workload")
    return name


def _keys(fields: Fields, own: Own) -> KeySource:
    value = fields.raw("keys")
    if value is None:
        return KeySource()
    inner = Fields(value, "keys")
    url, inline = _printable(inner, "url"), inner.raw("inline")
    inner.done()
    if (url is None) == (inline is None):
        raise fields.error("keys", "must have url or inline; leave keys out for discovery")
    if url is not None:
        _check_url(inner, "url", url)
        if _origin(url) in map(_origin, own.urls):
            raise inner.error("url", _OURS)
        return KeySource(url=url)
    try:
        usable = jws.read_keys(inline)
    except ValueError as error:
        raise inner.error("inline", str(error)) from None
    if not usable:
        taken = "RS256, PS256, ES256, ES384 or EdDSA"
        raise inner.error("inline", f"has no public key with a kid of its own for {taken}")
    if own.key_ids & {_thumbprint(key) for key in usable.values()}:
        raise inner.error("inline", "has a key of this broker")
    return KeySource(inline=inline)


def _check_issuer(fields: Fields, rule: Rule, own: Own) -> None:
    """Refuse our own issuer however it is spelled, and one whose keys nobody could find."""
    if rule.kind is Kind.KUBERNETES and rule.keys != KeySource():
        raise fields.error("keys", "must be left out: the cluster is asked")
    if rule.kind is Kind.OIDC and rule.keys == KeySource():
        _check_url(fields, "issuer", rule.issuer)
    if _spelled(rule.issuer) in map(_spelled, own.urls):
        raise fields.error("issuer", _OURS)


def _printable(fields: Fields, name: str) -> str | None:
    value = fields.text(name, longest=_MAX_TEXT)
    if value is not None and not _PRINTABLE.fullmatch(value):
        raise fields.error(name, "must be printable ASCII without blanks")
    return value


def _check_url(fields: Fields, name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise fields.error(name, "must be a URL") from None
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
        raise fields.error(name, "must be a URL that starts with https://, or give keys.inline")
    if parts.query or parts.fragment:
        raise fields.error(name, "must be a URL without query and fragment")


def _spelled(url: str) -> tuple[str, str]:
    return _origin(url), urlsplit(url).path.rstrip("/")


def _origin(url: str) -> str:
    """Return host and port in one spelling; what is no URL stands for itself."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return url
    return f"{(parts.hostname or '').rstrip('.')}:{port}"


def _thumbprint(key: Key) -> str:
    public = key.public
    ours = isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1)
    return thumbprint(public) if ours and isinstance(public, EllipticCurvePublicKey) else ""
