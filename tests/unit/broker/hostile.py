"""A corpus of hostile assertions: `HOSTILE`, each made from what an honest issuer has.

Where a forger needs the issuer's own signature, he has it: what is tried is everything that must be
refused although it is signed.
"""

import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from daypass_broker.keys import Purpose
from daypass_core.claims import Claims, subject
from tests.servers.issuer import AUDIENCE, Issuer, encode, sign
from tests.support import TENANT, TRUST_DOMAIN, make_scope
from tests.unit.broker.workloads import Gate


def signed(
    issuer: Issuer, gate: Gate, header: dict[str, Any], payload: object = None, **claims: object
) -> str:
    """An assertion with header parameters added, or taken away by None."""
    pair = issuer.pairs["ES256"]
    usual = {"alg": "ES256", "kid": pair.kid, "typ": "JWT", **header}
    body = issuer.claims(gate.rig.clock.now(), **claims) if payload is None else payload
    return sign(pair, {name: value for name, value in usual.items() if value is not None}, body)


@dataclass(frozen=True)
class Forge:
    """What a hostile assertion is made from."""

    gate: Gate
    issuer: Issuer

    def __call__(self, header: dict[str, Any], payload: object = None, **claims: object) -> str:
        return signed(self.issuer, self.gate, header, payload, **claims)

    @property
    def good(self) -> str:
        return self.gate.token()

    def json(self, **claims: object) -> str:
        return json.dumps(self.issuer.claims(self.gate.rig.clock.now(), **claims))


def _none(forge: Forge) -> str:
    head = encode(json.dumps({"alg": "none", "kid": "key-es256", "typ": "JWT"}).encode())
    return f"{head}.{encode(forge.json().encode())}."


def _hmac(forge: Forge, algorithm: str = "HS256") -> str:
    """The old confusion: the public key taken for a shared secret."""
    secret = json.dumps(forge.issuer.pairs["RS256"].jwk)
    header = {"alg": algorithm, "kid": "key-rs256", "typ": "JWT"}
    message = f"{encode(json.dumps(header).encode())}.{encode(forge.json().encode())}"
    mac = hmac.digest(secret.encode(), message.encode(), "sha256")
    return f"{message}.{encode(mac)}"


def _swapped(forge: Forge, claimed: str, kid: str, signer: str) -> str:
    pair = forge.issuer.pairs[signer]
    header = {"alg": claimed, "kid": kid, "typ": "JWT"}
    return sign(pair, header, json.loads(forge.json()))


def _part(forge: Forge, index: int, change: Callable[[str], str]) -> str:
    parts = forge.good.split(".")
    parts[index] = change(parts[index])
    return ".".join(parts)


def _own_token(forge: Forge) -> str:
    """Our own access token, as it could be taken from a sandbox."""
    now = int(forge.gate.rig.clock.now())
    services = forge.gate.rig.services
    name = subject(TRUST_DOMAIN, TENANT, "sbx_a")
    claims = Claims(
        issuer=services.settings.issuer,
        audience=services.settings.audience,
        subject=name,
        tenant=TENANT,
        sandbox="sbx_a",
        token_id="tok_a",
        issued_at=now,
        expires_at=now + 600,
        grants=("grt_a",),
        not_before=now,
        scope=make_scope(),
    )
    key_id = services.keys.active(Purpose.ACCESS).kid
    return services.signer.sign_access(replace(claims, key_id=key_id))


HOSTILE: dict[str, Callable[[Forge], str]] = {
    "alg none": _none,
    "alg None": lambda f: f({"alg": "None"}),
    "HS256 with the public key": _hmac,
    "HS256 called RS256": lambda f: _hmac(f, "RS256"),
    "alg missing": lambda f: f({"alg": None}),
    "alg a list": lambda f: f({"alg": ["ES256"]}),
    "alg RS512": lambda f: f({"alg": "RS512"}),
    "alg of another key": lambda f: _swapped(f, "RS256", "key-es256", "RS256"),
    "RS256 signed with the PS256 key": lambda f: _swapped(f, "RS256", "key-ps256", "RS256"),
    "ES256 with a key of ES384": lambda f: _swapped(f, "ES256", "key-es384", "ES384"),
    "somebody else's key by that name": lambda f: _swapped(f, "ES256", "key-es256", "ES384"),
    "kid missing": lambda f: f({"kid": None}),
    "kid empty": lambda f: f({"kid": ""}),
    "kid a number": lambda f: f({"kid": 1}),
    "kid a path": lambda f: f({"kid": "../../dev/null"}),
    "kid SQL": lambda f: f({"kid": "' OR 1=1 --"}),
    "kid long": lambda f: f({"kid": "k" * 600}),
    "kid unknown": lambda f: f({"kid": "key-unknown"}),
    "jku": lambda f: f({"jku": "https://evil.test/keys"}),
    "jwk": lambda f: f({"jwk": f.issuer.pairs["ES256"].jwk}),
    "x5u": lambda f: f({"x5u": "https://evil.test/chain"}),
    "x5c": lambda f: f({"x5c": ["MII"]}),
    "crit": lambda f: f({"crit": ["exp"]}),
    "b64": lambda f: f({"b64": False}),
    "zip": lambda f: f({"zip": "DEF"}),
    "cty, nested": lambda f: f({"cty": "JWT"}, payload=f.good.encode()),
    "nested without cty": lambda f: f({}, payload=f.good.encode()),
    "typ at+jwt": lambda f: f({"typ": "at+jwt"}),
    "typ launch+jwt": lambda f: f({"typ": "launch+jwt"}),
    "typ renew+jwt": lambda f: f({"typ": "renew+jwt"}),
    "typ application/at+jwt": lambda f: f({"typ": "application/AT+JWT"}),
    "typ secevent+jwt": lambda f: f({"typ": "secevent+jwt"}),
    "typ a number": lambda f: f({"typ": 1}),
    "our own access token": _own_token,
    "iss of somebody else": lambda f: f({}, iss="https://evil.test"),
    "iss with more behind": lambda f: f({}, iss=f.issuer.url + ".evil.test"),
    "iss with a path behind": lambda f: f({}, iss=f.issuer.url + "/evil"),
    "iss with a slash behind": lambda f: f({}, iss=f.issuer.url + "/"),
    "iss in capitals": lambda f: f({}, iss=f.issuer.url.upper()),
    "iss shorter": lambda f: f({}, iss=f.issuer.url[:-1]),
    "iss a list": lambda f: f({}, iss=[f.issuer.url]),
    "iss missing": lambda f: f({}, iss=None),
    "aud of somebody else": lambda f: f({}, aud="https://evil.test"),
    "two auds": lambda f: f({}, aud=[AUDIENCE, "https://evil.test"]),
    "our aud twice": lambda f: f({}, aud=[AUDIENCE, AUDIENCE]),
    "no aud in the list": lambda f: f({}, aud=[]),
    "aud in an object": lambda f: f({}, aud={AUDIENCE: 1}),
    "aud missing": lambda f: f({}, aud=None),
    "aud with a slash behind": lambda f: f({}, aud=AUDIENCE + "/"),
    "expired": lambda f: f({}, iat=_now(f) - 900, nbf=None, exp=_now(f) - 5),
    "of the future": lambda f: f({}, iat=_now(f) + 31, exp=_now(f) + 90),
    "nbf of the future": lambda f: f({}, nbf=_now(f) + 31),
    "exp before iat": lambda f: f({}, iat=_now(f) + 9, exp=_now(f) + 8),
    "too long a life": lambda f: f({}, exp=_now(f) + 3601),
    "life without end": lambda f: f({}, exp=2**53),
    "exp missing": lambda f: f({}, exp=None),
    "iat missing": lambda f: f({}, iat=None),
    "exp a text": lambda f: f({}, exp=str(_now(f) + 60)),
    "exp a float": lambda f: f({}, exp=_now(f) + 60.5),
    "exp true": lambda f: f({}, exp=True),
    "exp 1e308": lambda f: f({}, payload=f.json(exp="E").replace('"E"', "1e308").encode()),
    "exp NaN": lambda f: f({}, payload=f.json(exp="E").replace('"E"', "NaN").encode()),
    "nbf a text": lambda f: f({}, nbf="0"),
    "another workload": lambda f: f({}, sub="workload-3"),
    "a workload that begins so": lambda f: f({}, sub="workload-11"),
    "workloads in a list": lambda f: f({}, sub=["workload-1"]),
    "no workload": lambda f: f({}, sub=None),
    "duplicate claim": lambda f: f({}, payload=(f.json()[:-1] + ',"sub":"x"}').encode()),
    "duplicate claim inside": lambda f: f(
        {}, payload=(f.json()[:-1] + ',"a":{"b":1,"b":2}}').encode()
    ),
    "payload a list": lambda f: f({}, payload=[1]),
    "payload a text": lambda f: f({}, payload="text"),
    "payload no UTF-8": lambda f: f({}, payload=b'{"sub":"\xff"}'),
    "payload UTF-16": lambda f: f({}, payload=f.json().encode("utf-16")),
    "nested without end": lambda f: f({}, payload=f.json(a="A").replace('"A"', "[" * 999).encode()),
    "huge": lambda f: f({}, pad="x" * 16_384),
    "four parts": lambda f: f.good + ".x",
    "five parts, as a JWE has": lambda f: f.good + ".x.y",
    "two parts": lambda f: f.good.rpartition(".")[0],
    "no parts": lambda _: "",
    "JSON serialisation": lambda f: json.dumps({"payload": f.good.split(".")[1]}),
    "a newline behind": lambda f: f.good + "\n",
    "a blank inside": lambda f: f.good.replace(".", " .", 1),
    "padding": lambda f: _part(f, 2, lambda part: part + "="),
    "signature cut": lambda f: _part(f, 2, lambda part: part[:-4]),
    "signature missing": lambda f: _part(f, 2, lambda _: ""),
    "signature of zeros": lambda f: _part(f, 2, lambda _: encode(bytes(64))),
    "payload changed": lambda f: _part(f, 1, lambda _: encode(f.json(sub="workload-2").encode())),
    "header changed": lambda f: _part(
        f, 0, lambda _: encode(b'{"typ":"JWT","kid":"key-es256","alg":"ES256"}')
    ),
    "not canonical": lambda f: _part(f, 2, _another_spelling),
}


def _now(forge: Forge) -> int:
    return int(forge.gate.rig.clock.now())


def _another_spelling(part: str) -> str:
    """The same 64 bytes, spelled with bits set that nobody reads."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return part[:-1] + letters[letters.index(part[-1]) ^ 1]
