"""The composition root and the command line: what must be there before anything is served."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from daypass_core.clock import StoreClock
from daypass_proxy import __main__ as main_module
from daypass_proxy import app as app_module
from daypass_proxy import serving
from daypass_proxy.app import build_services
from daypass_proxy.edge import Application
from daypass_proxy.settings import load
from tests.fakes.proxy import ENVIRONMENT, Proxy


async def test_services_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its database the proxy does not start, and says what to start first."""
    monkeypatch.setattr(app_module, "STORE_SECONDS", 0.1)
    settings = load({**ENVIRONMENT, "DAYPASS_DATABASE_URL": f"sqlite:///{tmp_path}/absent.db"})
    with pytest.raises(RuntimeError, match="start the broker first"):
        async with build_services(settings, StoreClock()):
            pass


# -- the command line


def run_main(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *arguments: str) -> int:
    """Run `python -m daypass_proxy` with an environment, without hardening the test process."""
    monkeypatch.setattr(main_module, "harden", lambda: None)
    monkeypatch.setattr(main_module, "load", lambda: load(environment))
    return main_module.main(arguments)


def test_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` says that the settings are usable, or lists all problems and exits 2."""
    assert run_main(monkeypatch, ENVIRONMENT, "check") == 0
    assert "usable" in capsys.readouterr().out
    broken = {**ENVIRONMENT, "DAYPASS_ISSUER": "", "DAYPASS_POLL_SECONDS": "soon"}
    assert run_main(monkeypatch, broken, "check") == 2
    error = capsys.readouterr().err
    assert "DAYPASS_ISSUER" in error
    assert "DAYPASS_POLL_SECONDS" in error


def test_serve_with_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` does not start with settings that are not usable."""
    assert run_main(monkeypatch, {}, "serve") == 2


def test_price_overlay_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An overlay that cannot be used is found before anything is served."""
    overlay = tmp_path / "prices.json"
    overlay.write_text(json.dumps({"providers": {"anthropic": [{"model": "x"}]}}))
    environment = {**ENVIRONMENT, "DAYPASS_PRICES": str(overlay)}
    assert run_main(monkeypatch, environment, "check") == 2


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names both commands."""
    with pytest.raises(SystemExit) as caught:
        main_module.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "serve" in out
    assert "check" in out


def test_refusals_of_the_guard_are_counted() -> None:
    """What never reaches the application is in its metrics, from its start to its end."""
    application = Application(cast(Any, None))
    serving._count_refusal(application, "headers_too_large")
    proxy = Proxy()
    application.services = proxy.services
    serving._count_refusal(application, "headers_too_large")
    counted = proxy.services.metrics.registry.get_sample_value(
        "daypass_refusals_total", {"code": "headers_too_large"}
    )
    assert counted == 1
