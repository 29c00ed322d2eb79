"""nginx: the header swap alone."""

import subprocess

from bench.install import apt
from bench.peers import Target, bearer, fill
from bench.process import free_port
from bench.site import REAL_KEY, Site


def start(site: Site) -> Target:
    program = apt("nginx")
    port = free_port()
    folder = site.folder / "nginx"
    folder.mkdir()
    config = fill(
        "nginx.conf",
        folder / "nginx.conf",
        folder=folder,
        port=port,
        upstream=site.upstream_port,
        key=REAL_KEY,
    )
    process = site.start("nginx", [program, "-c", config])
    process.wait_port(port)
    told = subprocess.run([program, "-v"], capture_output=True, text=True).stderr
    version = told.strip().rpartition("/")[2]
    does = "swaps the header; verifies nothing"
    return Target("nginx", version, does, port, process, bearer(site))
