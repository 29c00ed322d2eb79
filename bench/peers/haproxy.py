"""HAProxy, twice: with the header swap alone, and verifying the ES256 token of each request."""

import base64
import json
import subprocess
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.install import apt
from bench.peers import Target, bearer, fill
from bench.process import free_port
from bench.site import AUDIENCE, REAL_KEY, Site


def start(site: Site) -> Target:
    """The header swap alone."""
    return _start(site, "haproxy", "swaps the header; verifies nothing", "")


def start_verifying(site: Site) -> Target:
    """The same after the token was verified, as far as HAProxy can."""
    values = {"issuer": site.issuer, "audience": AUDIENCE, "public": public_key(site)}
    rules = fill("haproxy-es256.cfg", site.folder / "rules.cfg", **values).read_text()
    does = "ES256 on each request, issuer, audience, expiry; reads nothing of the body"
    return _start(site, "haproxy+es256", does, rules)


def _start(site: Site, name: str, does: str, rules: str) -> Target:
    program = apt("haproxy")
    port = free_port()
    config = fill(
        "haproxy.cfg",
        site.folder / f"{name}.cfg",
        name=name.replace("+", "-"),
        port=port,
        upstream=site.upstream_port,
        key=REAL_KEY,
        rules=rules,
    )
    process = site.start(name, [program, "-db", "-f", config])
    process.wait_port(port)
    told = subprocess.run([program, "-v"], capture_output=True, text=True).stdout
    return Target(name, told.split()[2], does, port, process, bearer(site))


def public_key(site: Site) -> Path:
    """The broker's public key that signed our token, as a PEM file."""
    head = json.loads(_decoded(site.token.split(".")[0]))
    (jwk,) = [key for key in site.jwks["keys"] if key["kid"] == head["kid"]]
    x, y = (int.from_bytes(_decoded(jwk[name])) for name in ("x", "y"))
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    path = site.folder / "es256.pem"
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_bytes(serialization.Encoding.PEM, form))
    return path


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
