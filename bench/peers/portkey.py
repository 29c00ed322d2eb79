"""Portkey's open gateway: it authenticates nobody; the key is passed through.

As published its streams answer 500 ("TypeError: immutable") with newer versions of hono and
@hono/node-server, so package.json holds those two back.
"""

import json
import shutil

from bench.install import node_peer
from bench.peers import HERE, Target
from bench.process import BenchError, free_port
from bench.site import REAL_KEY, Site


def start(site: Site) -> Target:
    node = shutil.which("node")
    if node is None:
        raise BenchError("needs node")
    gateway = node_peer("portkey") / "node_modules/@portkey-ai/gateway"
    server = gateway / "build" / "start-server.js"
    port = free_port()
    command = [
        node,
        "--import",
        HERE / "portkey_npm" / "loopback.mjs",
        server,
        f"--port={port}",
        "--headless",
    ]
    process = site.start("portkey", command)
    process.wait_port(port)
    headers = [
        "x-portkey-provider: anthropic",
        f"x-portkey-custom-host: http://127.0.0.1:{site.upstream_port}/v1",
        f"x-api-key: {REAL_KEY}",
    ]
    does = "verifies nothing, the caller holds the key; meters nothing"
    version = str(json.loads((gateway / "package.json").read_text())["version"])
    return Target("portkey", version, does, port, process, headers, warm=3)
