"""The demo's first steps: the servers, two sandboxes, and a closed cell around each."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from daypass.broker import Broker, Sandbox
from demo.agents import Agent
from demo.cell import BASE_ENVIRONMENT, Cell
from demo.layout import INSIDE, Kind
from demo.services.llm import LocalLlm
from demo.services.openbao import OpenBao
from demo.services.process import free_port
from demo.services.up import DaypassUp, UpSettings, two_ports
from demo.world import StepFailed, Tenant, World, expect

POLICY = """
profiles:
  assistant:
    authorization_details:
      - type: llm_inference
        provider: anthropic
        endpoints: [messages, count_tokens, models]
        models: [smollm2-135m-instruct]
    budget_usd: "1.00"
tenants:
  acme: {profiles: [assistant]}
  globex: {profiles: [assistant]}
orchestrators:
  acme-ci: {tenant: acme}
  globex-ci: {tenant: globex}
"""
# A made-up tariff, in dollars per million tokens: the model itself costs nothing.
PRICES = {
    "providers": {
        "anthropic": [
            {
                "model": "smollm2-135m-instruct",
                "context_window": 2048,
                "input": "1.00",
                "output": "5.00",
                "cache_read": "0.10",
            }
        ]
    }
}
PUBLIC_ADDRESSES = ("1.1.1.1:443", "192.0.2.1:80")
INSIDE_DOOR = "/run/daypass"
INSIDE_SOCKETS = "/run/daypass/proxy"


def start_servers(world: World) -> None:
    """OpenBao, the LLM and daypass, as much at once as their order allows."""
    llm_port = free_port()
    with ThreadPoolExecutor() as pool:
        llm = pool.submit(
            lambda: world.keep(LocalLlm.start(world.directory, *world.keys.values(), port=llm_port))
        )
        # Inside the cells nothing can be written, compiled modules neither; so compile them here.
        warm = pool.submit(
            subprocess.run, [sys.executable, "-c", "import anthropic"], env=BASE_ENVIRONMENT
        )
        world.bao = world.keep(OpenBao.start(world.directory))
        world.up_settings = _settings(world, f"http://127.0.0.1:{llm_port}")
        world.up = world.keep(DaypassUp.start(world.up_settings))
        world.llm = llm.result()
        warm.result()
    credential = world.up.credential_file.read_text().strip()
    world.admin = Broker(world.up.admin_url, credential)
    world.terminal.say(
        f"The LLM ({world.llm.model}) demands its own key. There is one per tenant; both lie in"
        " OpenBao, where the proxy may read these two entries and nothing else."
    )


def _settings(world: World, llm_url: str) -> UpSettings:
    """Store the keys, make the proxy's token, write policy and prices."""
    paths = {name: f"secret/llm/{name}" for name in world.keys}
    for name, key in world.keys.items():
        world.bao.put(paths[name], api_key=key)
    port, admin_port = two_ports()
    return UpSettings(
        directory=world.directory / "state",
        anthropic_url=llm_url,
        keys={name: f"vault://{path}#api_key" for name, path in paths.items()},
        policy=world.write("policy.yaml", POLICY),
        prices=world.write("prices.json", json.dumps(PRICES)),
        vault_address=world.bao.address,
        vault_token_file=world.write("vault.token", world.bao.token_for([*paths.values()])),
        port=port,
        admin_port=admin_port,
    )


def open_cells(world: World) -> None:
    """A sandbox per tenant, registered by that tenant's orchestrator, and a cell around it."""
    for name, key in world.keys.items():
        made = world.admin.create_credential("orchestrator", f"{name}-ci")
        broker = Broker(world.up.admin_url, str(made["credential"]))
        sandbox = broker.create(connect="socket")
        door = make_door(world, name, sandbox)
        shared = {INSIDE_DOOR: door, INSIDE_SOCKETS: world.up.proxy_socket.parent}
        cell = world.keep(Cell.open(world.directory / f"cell-{name}", shared))
        environment = enter(world, cell, sandbox, door)
        agent = Agent(cell, environment, world.llm.model)
        world.tenants[name] = Tenant(name, key, broker, sandbox, door, cell, agent)
    for tenant in world.tenants.values():
        version = tenant.agent.wait_until_ready()
    world.terminal.say(
        "Each tenant's orchestrator registered a sandbox: it gets a launch credential and four"
        f" environment variables. The agent in it is the official client, anthropic {version},"
        " unmodified and without a key."
    )


def make_door(world: World, name: str, sandbox: Sandbox) -> Path:
    """The folder of a cell's own files: its launch credential, and where the socket is mounted."""
    door = world.directory / f"door-{name}"
    (door / "proxy").mkdir(mode=0o700, parents=True)
    for path, content in sandbox.files.items():
        world.write(f"{door.name}/{Path(path).name}", content)
    return door


def enter(world: World, cell: Cell, sandbox: Sandbox, door: Path) -> dict[str, str]:
    """Start the forwarder in a cell and return the environment for what runs there."""
    environment = dict(sandbox.environment)
    if not cell.kind.sealed:
        environment["ANTHROPIC_BASE_URL"] = world.up.proxy_url
        name = Path(environment["ANTHROPIC_IDENTITY_TOKEN_FILE"]).name
        environment["ANTHROPIC_IDENTITY_TOKEN_FILE"] = str(door / name)
        return environment
    listen = urlsplit(environment["ANTHROPIC_BASE_URL"]).netloc
    words = ["--listen", listen, "--socket", environment["DAYPASS_PROXY_SOCKET"]]
    forwarder = cell.start([sys.executable, "-m", "daypass.forward", *words])
    if "forwarding" not in forwarder.stdout.readline():
        raise StepFailed(f"the forwarder did not start: {forwarder.stderr.readline()}")
    return environment


def try_to_get_out(world: World) -> None:
    """From inside a cell, nothing answers but the proxy."""
    cell = world.tenants["acme"].cell
    if cell.kind is Kind.OPEN:
        world.terminal.say(
            "This system allows no namespaces, neither by unshare nor by bubblewrap: the agents"
            " run in the open, and this step has nothing to show."
        )
        return
    own = urlsplit(world.tenants["acme"].sandbox.environment["ANTHROPIC_BASE_URL"]).netloc
    closed = {
        f"127.0.0.1:{world.llm.port}": "the LLM",
        f"127.0.0.1:{world.bao.port}": "OpenBao",
        urlsplit(world.up.admin_url).netloc: "the broker",
        **dict.fromkeys(PUBLIC_ADDRESSES, "the Internet"),
    }
    done = cell.run([sys.executable, str(INSIDE / "probe.py"), own, *closed])
    expect(done.returncode == 0, f"the probe failed: {done.stderr[-500:]}")
    seen = json.loads(done.stdout)
    expect(seen["connections"].pop(own) == "open", "the forwarder in the cell does not answer")
    reached = [closed[target] for target, how in seen["connections"].items() if how == "open"]
    expect(not reached, f"from the cell one reaches {reached}")
    expect(seen["interfaces"] == ["lo"], f"the cell has network devices: {seen['interfaces']}")
    expect(seen["sockets"] == [f"{INSIDE_SOCKETS}/proxy.sock"], f"sockets: {seen['sockets']}")
    world.terminal.say(
        f"Made with {cell.kind}: own network, mounts, processes and users. The LLM, OpenBao, the"
        " broker and the Internet do not answer from inside; the proxy's socket does."
    )
