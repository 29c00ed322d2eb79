"""One pod of the fleet test: a process as its container says, on a loopback address of its own.

As root it gets what a kubelet gives: the container's user, no capabilities, a root directory that
is read-only but for its `emptyDir`s, and its secrets as files. Otherwise it runs as it is, with the
paths of its mounts put in place of the container's.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fleet import wallclock
from tests.fleet.service import Probe

_CLOCK = "/run/fleet-clock"
_SYSTEM = ("usr", "lib", "lib64", "bin", "sbin", "etc")


@dataclass(frozen=True)
class Container:
    """What the chart says of a pod's one container, as far as a process has it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready: Probe
    live: Probe
    port: int
    """The port that its service leads to."""
    user: int = 65532
    read_only: bool = True
    empty: tuple[str, ...] = ()
    """Where empty writable directories are mounted."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Directories that are mounted read-only, by where."""
    grace_seconds: float = 60.0


class Pod:
    """One process; `host` is the loopback address that stands for the pod's own."""

    def __init__(self, name: str, host: str, container: Container, folder: Path) -> None:
        self.name, self.host, self.container = name, host, container
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o755)
        self._clock = self._folder / "clock"
        self._movable = False
        self.wanted = True
        """Whether it is to be started anew when it has ended."""

    @property
    def kind(self) -> str:
        """`broker` or `proxy`."""
        return self.name.partition("-")[0]

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self._folder / "log"

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process, without waiting for anything."""
        isolated = os.geteuid() == 0
        command = self._isolated() if isolated else self._bare()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=self._environment(isolated),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.process is not None:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Wait for its end; killed when that takes too long, as a kubelet does."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            return -signal.SIGKILL

    def stop(self) -> None:
        """End it as quickly as may be."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.wait(10)

    def use_movable_clock(self) -> None:
        """Let the next start have a wall clock that `set_clock` can move."""
        wallclock.prepare(self._clock)
        self._movable = True

    def set_clock(self, seconds: int) -> None:
        """Let its wall clock be so far off."""
        wallclock.move(self._clock, seconds)

    def _environment(self, isolated: bool) -> dict[str, str]:
        found = dict(self.container.environment)
        for name, value in found.items():
            found[name] = value.replace("0.0.0.0", self.host)
        if not isolated:
            found = {name: self._unmounted(value) for name, value in found.items()}
        found["PATH"] = f"{Path(sys.executable).parent}:{os.defpath}"
        if self._movable and not isolated:
            found |= wallclock.environment(self._clock)
        return found

    def _unmounted(self, text: str) -> str:
        for where in self.container.empty:
            text = text.replace(where, str(self._own(where)))
        for where, source in self.container.mounts.items():
            text = text.replace(where, str(source))
        return text

    def _own(self, where: str) -> Path:
        found = self._folder / "empty" / where.strip("/").replace("/", "-")
        found.mkdir(parents=True, exist_ok=True)
        return found

    def _bare(self) -> list[str]:
        return [self._unmounted(word) for word in self.container.command]

    def _isolated(self) -> list[str]:
        root = self._folder / "root"
        root.mkdir(exist_ok=True)
        script = "\n".join(self._steps(root))
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]

    def _steps(self, root: Path) -> list[str]:
        """Build the root directory as a shell does, and become the container's process in it."""
        container, quoted = self.container, shlex.quote(str(root))
        steps = [f"mount -t tmpfs -o mode=0755 root {quoted}"]
        for name in _SYSTEM:
            place = Path("/") / name
            if place.is_symlink():
                steps.append(f"ln -s {os.readlink(place)} {quoted}/{name}")
            elif place.exists():
                steps += _bind(place, root / name)
        for place in _python_folders():
            steps += _bind(place, root / place.relative_to("/"))
        clock = {_CLOCK: self._clock} if self._movable else {}
        for where, source in {**container.mounts, **clock}.items():
            steps += _bind(source, root / where.lstrip("/"))
        for name in ("dev", "proc"):
            steps += [f"mkdir -p {quoted}/{name}", f"mount --rbind /{name} {quoted}/{name}"]
        for where in container.empty:
            target = shlex.quote(str(root / where.lstrip("/")))
            steps += [f"mkdir -p {target}", f"mount -t tmpfs -o mode=0777 empty {target}"]
        if container.read_only:
            steps.append(f"mount -o remount,ro {quoted}")
        user = f"--reuid={container.user} --regid={container.user} --clear-groups"
        nothing = "--no-new-privs --inh-caps=-all --bounding-set=-all"
        words = shlex.join(container.command)
        if self._movable:
            own = [f"{name}={value}" for name, value in wallclock.environment(Path(_CLOCK)).items()]
            words = shlex.join(["env", *own, *container.command])
        return [*steps, f"exec /usr/sbin/chroot {quoted} setpriv {user} {nothing} -- {words}"]


def _bind(source: Path, target: Path) -> list[str]:
    here, there = shlex.quote(str(source)), shlex.quote(str(target))
    return [
        f"mkdir -p {there}",
        f"mount --bind {here} {there}",
        f"mount -o remount,bind,ro {there}",
    ]


def _python_folders() -> list[Path]:
    """What the interpreter of the tests needs: its own installation, its environment, the code."""
    folders = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()}
    folders.add(Path(__file__).resolve().parents[2])
    # One inside another comes along with it.
    return [one for one in sorted(folders) if not any(up in folders for up in one.parents)]
