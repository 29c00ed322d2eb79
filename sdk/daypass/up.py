"""`daypass up`: broker and proxy as two processes over one SQLite file, in one command.

First start: it creates the state directory, the schema, signing keys, an admin credential and a
policy for one tenant. Then it runs until it is interrupted, or until a service ends: nothing is
restarted, what broke should be seen. Needs `pip install 'daypass[server]'`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from daypass._errors import NotInstalled, Refused, ServiceFailed, SettingsError
from daypass._files import write_private
from daypass._http import Origin
from daypass._process import Service, end, tail
from daypass._progress import Progress
from daypass._settings import check_credential, state_dir
from daypass._state import Plan, State, UpOptions, make_plan
from daypass.broker import Broker

DEFAULT_POLICY: dict[str, Any] = {
    "profiles": {
        "default": {
            "authorization_details": [
                {
                    "type": "llm_inference",
                    "provider": "anthropic",
                    "endpoints": ["messages", "count_tokens", "models"],
                    # Named first: the model of /v1/infer, which needs one that is no pattern.
                    "models": ["claude-sonnet-5-5", "*"],
                }
            ],
            "budget_usd": "5.00",
            "max_budget_usd": "50.00",
        }
    },
    "tenants": {"default": {"profiles": ["default"]}},
    "orchestrators": {"default": {"tenant": "default"}},
}
_SAMPLE = (
    "import anthropic; print(anthropic.Anthropic().messages.create(model='claude-haiku-4-5',"
    " max_tokens=64, messages=[{'role': 'user', 'content': 'hello'}]).content[0].text)"
)


def up(options: UpOptions) -> int:
    """Run both services until a signal (0) or until one of them ends (1).

    A signal during the start gives 130. Raises `NotInstalled`, `SettingsError` or
    `ServiceFailed` when the start does not succeed.
    """
    for module in ("daypass_broker", "daypass_proxy"):
        if importlib.util.find_spec(module) is None:
            raise NotInstalled(f"{module} is not installed")
    os.umask(0o077)
    state = State(options.directory)
    with state.claimed():
        return _run(options, state, make_plan(options, state))


def _run(options: UpOptions, state: State, plan: Plan) -> int:
    progress = Progress()
    services: list[Service] = []
    signals = _Signals()
    with signals.taken():
        try:
            _prepare(options, state, plan, progress)
            tenants = _start(state, plan, progress, services)
            for service in services:
                service.report(signals.events)
            signals.started = True
            _announce(options, state, plan, services)
            _warn_of_tenants(plan, tenants)
            _warn_of_keys(services[-1])
            return _watch(signals.events)
        except _Interrupted:
            return 130
        finally:
            signals.started = True
            if services:
                with progress.step("stopped"):
                    end(services)


def _prepare(options: UpOptions, state: State, plan: Plan, progress: Progress) -> None:
    """Schema, certificate and admin credential: made once, found again later."""
    if options.tls:
        with progress.step("certificate"):
            hosts = ("--host", "localhost", "--host", "127.0.0.1")
            _broker_command(plan, "tls", "--dir", str(state.tls), *hosts)
    with progress.step("database"):
        _broker_command(plan, "migrate")
    if not state.credential_file.exists():
        with progress.step("admin credential"):
            made = _broker_command(plan, "credential", "create", "--role", "admin", "--json")
            write_private(state.credential_file, json.loads(made)["credential"].encode())


def _start(state: State, plan: Plan, progress: Progress, services: list[Service]) -> list[str]:
    """Start the broker, give it its policy, then start the proxy, which needs the broker's keys.

    Gives the tenants of the policy.
    """

    def start(name: str, env: dict[str, str], origin: Origin) -> None:
        with progress.step(name) as tick:
            log = state.log_file(name)
            service = Service(name, f"daypass_{name}", env, log, state.directory)
            services.append(service)
            service.await_ready(origin, tick)

    start("broker", plan.broker, Origin(plan.admin_url, answer_seconds=2))
    state.write_config(_urls(plan))
    with progress.step("policy"):
        tenants = _apply_policy(state, plan)
    start("proxy", plan.proxy, Origin(plan.proxy_url, ca_file=plan.ca_file, answer_seconds=2))
    return tenants


def _apply_policy(state: State, plan: Plan) -> list[str]:
    """Apply the given policy; without one, the default policy unless there is a policy already.

    Gives the tenants that there are then.
    """
    text = state.credential_file.read_text(encoding="utf-8", errors="replace").strip()
    broker = Broker(plan.admin_url, check_credential(text, str(state.credential_file)))
    try:
        if plan.policy is not None:
            broker.apply(plan.policy)
        elif not broker.policy().get("tenants"):
            broker.apply(DEFAULT_POLICY)
        return sorted(broker.policy().get("tenants") or {})
    except Refused as error:
        if error.status != 401:
            raise
        raise SettingsError(
            "the admin credential does not fit the database",
            hint=f"delete {state.credential_file} to have a new one made",
        ) from None


def _warn_of_tenants(plan: Plan, tenants: Sequence[str]) -> None:
    """Say which tenants no provider key is given for: their calls are refused."""
    names = ("DAYPASS_ANTHROPIC_KEYS", "DAYPASS_OPENAI_KEYS")
    entries = [entry for name in names for entry in plan.proxy.get(name, "").split(",")]
    served = {entry.partition("=")[0].strip() for entry in entries}
    if "DAYPASS_UPSTREAMS" in plan.proxy:  # its servers have keys of their own, or need none
        return
    for tenant in tenants:
        if not served & {tenant, "*"}:
            words = f"tenant {tenant} has no provider key, so its calls are refused"
            hint = f"pass --anthropic-key {tenant}=REF"
            print(f"daypass: warning: {words}; {hint}", file=sys.stderr)


def _warn_of_keys(proxy: Service) -> None:
    """Say which provider keys cannot be read: calls of their tenants are refused."""
    failed = {
        event.get("reference"): event.get("reason") for event in proxy.events("key_read_failed")
    }
    for reference, reason in failed.items():
        words = (
            f"provider key {reference} cannot be read ({reason}); calls are refused until it can"
        )
        print(f"daypass: warning: {words}", file=sys.stderr)


def _broker_command(plan: Plan, *words: str) -> str:
    """Run one command of the broker on the database and give what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "daypass_broker", *words],
        env=plan.broker,
        cwd=plan.broker["DAYPASS_BROKER_KEYS_DIR"],
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if done.returncode != 0:
        text = done.stderr.strip() or done.stdout.strip()
        last = text.splitlines()[-1] if text else f"exit code {done.returncode}"
        raise ServiceFailed(f"`daypass_broker {words[0]}` failed: {last}", hint="")
    return done.stdout


def _next(events: SimpleQueue[object]) -> object:
    """Wait for an event; a signal just before a wait does not end it, so look up now and then."""
    while True:
        with suppress(Empty):
            return events.get(timeout=0.5)


def _watch(events: SimpleQueue[object]) -> int:
    """Wait for the end: a signal is a good one, a service that ended is not."""
    event = _next(events)
    if not isinstance(event, Service):
        return 0
    code = event.process.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    print(f"daypass: the {event.name} ended with {how}, so daypass stops", file=sys.stderr)
    print(f"last lines of {event.log}:\n{tail(event.log, since=event.log_start)}", file=sys.stderr)
    return 1


def _announce(options: UpOptions, state: State, plan: Plan, services: list[Service]) -> None:
    """Say where everything is and what to do next."""
    if options.as_json:
        found = {
            **_urls(plan),
            "proxy_socket": str(state.proxy_socket),
            "credential_file": str(state.credential_file),
            "state_dir": str(state.directory),
            "pids": {service.name: service.process.pid for service in services},
        }
        print(json.dumps(found), flush=True)
        return
    where = ""
    if state.directory != state_dir():
        where = f"  export DAYPASS_DIR={shlex.quote(str(state.directory))}\n"
    sample = f'  python -c "{_SAMPLE}"\n' if "DAYPASS_ANTHROPIC_KEYS" in plan.proxy else ""
    print(
        f"""
daypass is up: agents get a day pass, never the key

  proxy  {plan.proxy_url}
  admin  {plan.admin_url}
  state  {state.directory} (logs in logs/)

Next, in another terminal:

{where}  eval "$(daypass sandbox create)"
{sample}  daypass usage --by sandbox && daypass revoke --sandbox "$DAYPASS_SANDBOX"

Ctrl-C stops it.""",
        flush=True,
    )


def _urls(plan: Plan) -> dict[str, str]:
    ca = {"ca_file": str(plan.ca_file)} if plan.ca_file else {}
    return {"proxy_url": plan.proxy_url, "admin_url": plan.admin_url, **ca}


class _Interrupted(Exception):
    """A signal arrived before everything was up."""


class _Signals:
    """SIGINT, SIGTERM and SIGHUP: they interrupt the start, and are an event afterwards."""

    def __init__(self) -> None:
        self.events: SimpleQueue[object] = SimpleQueue()
        self.started = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals inside the block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.started:
            self.events.put(number)
            return
        self.started = True  # the next one must not interrupt the tidying up
        raise _Interrupted
