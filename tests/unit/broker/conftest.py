"""Fixtures of the broker's unit tests."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from daypass_broker.attest import federation, kubernetes
from daypass_broker.attest.https import HttpsClient
from tests.fakes.clock import FakeClock
from tests.unit.broker.desk import Desk, make_desk_template
from tests.unit.broker.rig import Rig, make_template


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issuers and clusters are waited for as long as a machine with other things to do needs."""
    for module in (federation, kubernetes):
        monkeypatch.setattr(module, "HttpsClient", partial(HttpsClient, seconds=30.0))


@pytest.fixture(scope="session")
def issuing_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database and signing keys, to be copied."""
    return make_template(tmp_path_factory.mktemp("issuing"))


@pytest.fixture
def rig(tmp_path: Path, issuing_template: Path, clock: FakeClock) -> Iterator[Rig]:
    """A broker's issuing half over its own database."""
    made = Rig.copy_of(issuing_template, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture(scope="session")
def desk_template(tmp_path_factory: pytest.TempPathFactory, issuing_template: Path) -> Path:
    """The same with a policy applied and credentials handed out, to be copied."""
    return make_desk_template(tmp_path_factory.mktemp("desk"), issuing_template)


@pytest.fixture
def desk(tmp_path: Path, desk_template: Path) -> Iterator[Desk]:
    """A broker's admin listener over its own database."""
    made = Desk(tmp_path, desk_template)
    yield made
    made.close()
