"""`daypass sandbox` from the warm pool to the last heartbeat, and the heartbeat of a block."""

import json
import threading
from pathlib import Path

import pytest

from daypass import Unavailable
from daypass.__main__ import main
from daypass._beating import beating
from daypass.broker import Broker, Sandbox
from tests.unit.sdk.admin_server import SANDBOX, AdminServer
from tests.unit.sdk.cli import run

IDLE = {
    name: value
    for name, value in {**SANDBOX, "state": "idle", "deadline": None}.items()
    if name not in ("environment", "files")
}


@pytest.mark.usefixtures("admin_environment")
def test_an_idle_sandbox_is_registered_and_activated(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Registering prints its id and writes nothing; activating hands out like creating."""
    admin.answers["POST /v1/sandboxes"] = (201, {"sandboxes": [IDLE, {**IDLE, "id": "sbx_b"}]})
    out = run(capsys, "sandbox", "create", "--idle", "--count", "2", "--heartbeat", "60")
    assert out == "sbx_a\nsbx_b\n"
    assert admin.asked[0].json() == {"idle": True, "count": 2, "heartbeat_seconds": 60}
    assert not (tmp_path / "state" / "sandboxes" / "sbx_a").exists()
    admin.answers["POST /v1/sandboxes/sbx_a/activate"] = (200, SANDBOX)
    words = "--lifetime 90 --source 10.0.0.0/8 --source 10.9.9.9 --vendor e2b=i=4 --label task=1"
    out = run(capsys, "sandbox", "activate", "sbx_a", *words.split())
    assert "export DAYPASS_SANDBOX=sbx_a" in out
    assert admin.asked[1].json() == {
        "lifetime_seconds": 90,
        "source": ["10.0.0.0/8", "10.9.9.9"],
        "vendor": "e2b",
        "vendor_id": "i=4",
        "labels": {"task": "1"},
    }
    assert (tmp_path / "state" / "sandboxes" / "sbx_a" / "launch.jwt").exists()


@pytest.mark.usefixtures("admin_environment")
@pytest.mark.parametrize("word", ["any", "first"])
def test_a_source_may_be_a_word(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    """`any` and `first` alone are words of the API; among networks they are a mistake of it."""
    admin.answers["POST /v1/sandboxes"] = (201, SANDBOX)
    run(capsys, "sandbox", "create", "--json", "--source", word)
    run(capsys, "sandbox", "create", "--json", "--source", word, "--source", "10.0.0.0/8")
    assert [one.json()["source"] for one in admin.asked] == [word, [word, "10.0.0.0/8"]]


@pytest.mark.usefixtures("admin_environment")
def test_a_vendor_needs_its_id(admin: AdminServer) -> None:
    """Without one it is refused before anything is asked."""
    assert [main(["sandbox", "create", "--vendor", given]) for given in ("e2b", "e2b=", "=x")] == [
        2,
        2,
        2,
    ]
    assert admin.asked == []


@pytest.mark.usefixtures("admin_environment")
def test_heartbeats_are_sent(admin: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    """One request for each sandbox; nothing is said unless asked for."""
    admin.answers["POST /v1/sandboxes/sbx_a/heartbeat"] = (200, SANDBOX)
    assert run(capsys, "sandbox", "heartbeat", "sbx_a", "sbx_b") == ""
    assert admin.calls == [f"POST /v1/sandboxes/{name}/heartbeat" for name in ("sbx_a", "sbx_b")]
    shown = json.loads(run(capsys, "sandbox", "heartbeat", "sbx_a", "--json"))
    assert shown == {"sandboxes": [SANDBOX]}


@pytest.mark.usefixtures("admin_environment")
@pytest.mark.parametrize("action", ["heartbeat", "end"])
def test_one_that_is_over_keeps_no_other_waiting(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    """It is named, the rest is done, and the exit code says that something was refused."""
    beat = action == "heartbeat"
    for name in ("sbx_a", "sbx_b", "sbx_c"):
        request = f"POST /v1/sandboxes/{name}/heartbeat" if beat else f"DELETE /v1/sandboxes/{name}"
        admin.answers[request] = (200, SANDBOX)
        if name == "sbx_b":
            admin.answers[request] = (409, {"detail": "sandbox is ended, not active"})
    assert main(["sandbox", action, "sbx_a", "sbx_b", "sbx_c"]) == 1
    assert len(admin.calls) == 3
    shown = capsys.readouterr()
    assert shown.err == "daypass: sbx_b: sandbox is ended, not active\n"
    assert shown.out == ("" if beat else "ended sbx_a\nended sbx_c\n")


@pytest.mark.usefixtures("admin_environment")
def test_a_wrong_credential_ends_the_round(
    admin: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be refused for each of the others as well."""
    admin.answers["POST /v1/sandboxes/sbx_a/heartbeat"] = (401, {"title": "unknown credential"})
    assert main(["sandbox", "heartbeat", "sbx_a", "sbx_b"]) == 1
    assert len(admin.calls) == 1
    assert capsys.readouterr().err.startswith("daypass: unknown credential")


@pytest.mark.usefixtures("admin_environment")
def test_an_attested_sandbox_is_restored_without_a_credential(
    admin: AdminServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """There is nothing to hand out, and nothing is written."""
    admin.answers["POST /v1/sandboxes/sbx_a/restore"] = (200, {**IDLE, "state": "active"})
    assert "workload identity" in run(capsys, "sandbox", "restore", "sbx_a")
    assert not (tmp_path / "state" / "sandboxes" / "sbx_a").exists()


def test_the_sdk_activates_and_beats(admin: AdminServer) -> None:
    """An idle one has no deadline and no environment yet; `None` is left out."""
    admin.answers["POST /v1/sandboxes"] = (201, IDLE)
    admin.answers["POST /v1/sandboxes/sbx_a/activate"] = (200, SANDBOX)
    broker = Broker(admin.url, "dpa_x_y")
    idle = broker.create(idle=True)
    assert (idle.deadline, idle.environment, idle.files) == ("", {}, {})
    given = broker.activate(idle.id, lifetime_seconds=60, source=None)
    assert given.launch == "launch-jwt"
    assert admin.asked[-1].json() == {"lifetime_seconds": 60}
    broker.beat("sbx/../a")
    assert admin.calls[-1] == "POST /v1/sandboxes/sbx%2F..%2Fa/heartbeat"


def test_a_block_beats_until_it_ends(admin: AdminServer) -> None:
    """Also after one that failed; none after the block, nor without a heartbeat."""
    beaten, enough = list[int](), threading.Event()

    def beat() -> None:
        beaten.append(len(beaten))
        if len(beaten) == 3:
            enough.set()
        raise Unavailable("busy")

    with beating(beat, 0.03):
        assert enough.wait(10)
    count = len(beaten)
    assert "daypass-heartbeat" not in {thread.name for thread in threading.enumerate()}
    with beating(beat, None):
        pass
    assert len(beaten) == count
    admin.answers["POST /v1/sandboxes"] = (201, {**SANDBOX, "heartbeat_seconds": 0.03})
    seen = threading.Event()
    broker = Broker(admin.url, "dpa_x_y")
    broker.beat = lambda sandbox: seen.set() or {}  # type: ignore[method-assign,func-returns-value]
    with broker.sandbox() as sandbox:
        assert isinstance(sandbox, Sandbox)
        assert seen.wait(10)
