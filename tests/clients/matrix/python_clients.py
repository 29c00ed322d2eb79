"""Python SDKs and agent frameworks, each in a program of a few lines (`programs/`)."""

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.clients.installed import frameworks_python, openai_python
from tests.clients.matrix.client import Client, Errand, Start
from tests.servers.agent import PYTHONS

PROGRAMS = Path(__file__).resolve().parent / "programs"
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would fetch a list of prices at import


def _with_setup() -> None:
    """Nothing to install: `make setup` did."""


def _anthropic_2(errand: Errand) -> Start:
    variables = {"ANTHROPIC_BASE_URL": errand.anthropic_url, "ANTHROPIC_AUTH_TOKEN": errand.token}
    return _started(Path(sys.executable), "anthropic_sdk.py", errand, variables)


def _anthropic_1(errand: Errand) -> Start:
    variables = {"ANTHROPIC_BASE_URL": errand.anthropic_url, "ANTHROPIC_API_KEY": errand.token}
    return _started(PYTHONS["anthropic 1.x"], "anthropic_sdk.py", errand, variables)


def _anthropic_federated(errand: Errand) -> Start:
    return _started(Path(sys.executable), "anthropic_sdk.py", errand, errand.federation)


def _openai(api: str) -> Client:
    def start(errand: Errand) -> Start:
        variables = {"OPENAI_BASE_URL": errand.openai_url, "OPENAI_API_KEY": errand.token}
        return _started(openai_python(), "openai_sdk.py", errand, variables, api)

    return Client(f"openai-py 3.x, {api}", "openai", openai_python, start)


def _framework(name: str, figures: str) -> Client:
    def start(errand: Errand) -> Start:
        place = [errand.anthropic_url, errand.openai_url, errand.token]
        words = [*place, errand.prompt, errand.mode, name]
        return Start([*_command(frameworks_python(), "frameworks.py"), *words], QUIET)

    return Client(name, figures, frameworks_python, start)


def _started(
    python: Path, program: str, errand: Errand, variables: Mapping[str, str], *words: str
) -> Start:
    command = [*_command(python, program), errand.prompt, errand.mode, *words]
    return Start(command, variables)


def _command(python: Path, program: str) -> list[str]:
    return [str(python), "-I", str(PROGRAMS / program)]


CLIENTS = (
    Client("anthropic-py 2.x", "anthropic", _with_setup, _anthropic_2),
    Client(
        "anthropic-py 2.x, four variables",
        "anthropic federated",
        _with_setup,
        _anthropic_federated,
    ),
    Client("anthropic-py 1.x", "anthropic", _with_setup, _anthropic_1),
    _openai("chat"),
    _openai("responses"),
    _framework("langchain-anthropic", "anthropic"),
    _framework("langchain-openai", "openai"),
    _framework("pydantic-ai, anthropic", "anthropic"),
    _framework("pydantic-ai, openai", "openai"),
    _framework("openai-agents", "openai"),
    _framework("litellm, anthropic", "litellm anthropic"),
    _framework("litellm, openai", "openai"),
    _framework("claude-agent-sdk", "claude code"),
)
