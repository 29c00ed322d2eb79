"""What every part of the broker is handed: one frozen record, built once in `app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from daypass_broker import db
from daypass_broker.health import Ending
from daypass_broker.metrics import Metrics
from daypass_broker.settings import Settings
from daypass_broker.threads import Threads

if TYPE_CHECKING:
    from daypass_broker.key_ring import KeyRing
    from daypass_broker.signing import Signer
    from daypass_core.clock import Clock


@dataclass(frozen=True, slots=True)
class Services:
    """The broker's collaborators; `new_id(prefix)` makes ids such as `sbx_…`.

    `clock` follows the store's time without asking it and never goes back; `now_ms` asks it, inside
    a transaction.
    """

    engine: sa.Engine
    clock: Clock
    settings: Settings
    signer: Signer
    keys: KeyRing
    new_id: Callable[[str], str]
    now_ms: Callable[[sa.Connection], int] = db.now_ms
    ending: Ending = field(default_factory=Ending)
    metrics: Metrics = field(default_factory=Metrics)
    threads: Threads = field(default_factory=Threads)
