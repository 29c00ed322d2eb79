"""A Vault in memory, for whoever reads provider keys."""

import threading
from collections import Counter

from daypass_core.secret import Secret
from daypass_core.vault import VaultError, VaultMissing


class FakeVault:
    """Secrets by path; fails as told, counts reads, and can be held back in its thread."""

    def __init__(self, **secrets: str) -> None:
        self.secrets = secrets
        self.error: VaultError | None = None
        self.reaches = 0
        self.reads: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self, mount: str, path: str, field: str) -> Secret:
        """Return a secret, as Vault.read does."""
        self.threads.add(threading.get_ident())
        self.reads[path] += 1
        assert self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        name = path.rpartition("/")[2]
        if name not in self.secrets:
            raise VaultMissing(f"nothing at {mount}/{path}#{field}")
        return Secret(self.secrets[name])

    def reach(self) -> None:
        """Fail as told, as Vault.reach does."""
        self.reaches += 1
        if self.error is not None:
            raise self.error
