"""The peers: one module or config each, all in front of the same upstream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.process import Process
from bench.site import Site

HERE = Path(__file__).resolve().parent


@dataclass
class Target:
    """Something that is measured. `does` says what it verifies and reads, for the table."""

    name: str
    version: str
    does: str
    port: int
    process: Process | None = None
    headers: list[str] = field(default_factory=list)
    warm: float = 0.5  # seconds before it is measured
    slow: bool = False  # answers in tens of milliseconds: fewer connections, longer runs

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


Start = Callable[[Site], Target]


def bearer(site: Site) -> list[str]:
    """The one real access token, as every target that verifies gets it."""
    return [f"Authorization: Bearer {site.token}"]


def pinned(file: str, package: str) -> str:
    """The version that a list of requirements in this folder names."""
    lines = (HERE / file).read_text().splitlines()
    (version,) = [line.partition("==")[2] for line in lines if line.startswith(package + "==")]
    return version


def fill(name: str, into: Path, /, **values: object) -> Path:
    """Write a config of this folder with its @NAME@ replaced."""
    text = (HERE / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key.upper()}@", str(value))
    into.write_text(text)
    return into
