"""`python -m tests.promtool`: the alert rules through Prometheus' own tool, each firing and quiet.

Behind `make test-alerts` and not in the test run, because the tool is a package of 19 MB: it is
taken from PATH, else from Debian's package `prometheus`, unpacked below .cache and not installed.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "observability"
CACHED = ROOT / ".cache" / "prometheus" / "promtool"


def promtool() -> Path:
    """Where the tool is, unpacked at the first call; exits with a sentence when there is none."""
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    if not CACHED.exists():
        if shutil.which("apt-get") is None:
            sys.exit("needs promtool: install Prometheus, or run where there is apt-get")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus"],
                cwd=folder,
                check=True,
            )
            (package,) = Path(folder).glob("prometheus_*.deb")
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
            CACHED.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(folder) / "usr" / "bin" / "promtool", CACHED)
    return CACHED


def main() -> int:
    """Check the rules and run their cases; 0 when all is right."""
    tool = promtool()
    for words in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([tool, *words], cwd=FOLDER)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
