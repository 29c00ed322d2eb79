"""LiteLLM: `/v1/messages` behind a custom authentication that verifies our token."""

import json
import shutil
from secrets import token_hex

from bench.install import python_peer
from bench.peers import HERE, Target, bearer, fill, pinned
from bench.peers.haproxy import public_key
from bench.process import free_port
from bench.site import AUDIENCE, REAL_KEY, Site

DOES = "ES256 on each request (hook, PyJWT); meters; no database"


def start(site: Site) -> Target:
    programs = python_peer("litellm") / "bin"
    folder = site.folder / "litellm"
    folder.mkdir()
    shutil.copy(HERE / "litellm_hook.py", folder)
    told = {"public": str(public_key(site)), "issuer": site.issuer, "audience": AUDIENCE}
    (folder / "hook.json").write_text(json.dumps(told))
    # It does not start without a master key, though the hook alone decides.
    values = {"upstream": site.upstream_port, "key": REAL_KEY, "master": f"sk-{token_hex(32)}"}
    config = fill("litellm.yaml", folder / "litellm.yaml", **values)
    port = free_port()
    process = site.start(
        "litellm",
        [programs / "litellm", "--config", config, "--host", "127.0.0.1", "--port", port,
         "--num_workers", "1"],
        environment={"PATH": f"{programs}:/usr/bin:/bin", "LITELLM_TELEMETRY": "False",
                     "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                     "HOME": str(folder)},
        folder=folder,
    )  # fmt: skip
    process.wait_port(port, 120)
    # Its first requests take seconds; what comes after is what is measured.
    version = pinned("litellm.txt", "litellm")
    return Target("litellm", version, DOES, port, process, bearer(site), warm=5, slow=True)
