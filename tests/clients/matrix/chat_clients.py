"""Programs that chat from the command line: aider and llm, on both APIs. They always stream."""

import json
from pathlib import Path

from tests.clients.installed import python_programs
from tests.clients.matrix.client import CLAUDE, GPT, Client, Errand, Start, written

LOCKS = Path(__file__).resolve().parent / "locks"
AIDER_FLAGS = (
    *("--no-git", "--no-auto-commits", "--yes-always", "--no-check-update", "--stream"),
    *("--no-show-model-warnings", "--analytics-disable", "--no-show-release-notes"),
)


def _aider_programs() -> Path:
    return python_programs(LOCKS / "aider.txt")


def _aider(errand: Errand, model: str, variables: dict[str, str]) -> Start:
    program = str(_aider_programs() / "aider")
    command = [program, "--model", model, *AIDER_FLAGS, "--message", errand.prompt]
    return Start(command, variables | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})


def _aider_anthropic(errand: Errand) -> Start:
    variables = {"ANTHROPIC_API_BASE": errand.anthropic_url, "ANTHROPIC_API_KEY": errand.token}
    return _aider(errand, f"anthropic/{CLAUDE}", variables)


def _aider_openai(errand: Errand) -> Start:
    variables = {"OPENAI_API_BASE": errand.openai_url, "OPENAI_API_KEY": errand.token}
    return _aider(errand, f"openai/{GPT}", variables)


def _llm_programs() -> Path:
    return python_programs(LOCKS / "llm.txt")


def _llm(errand: Errand, model: str, variables: dict[str, str]) -> Start:
    program = str(_llm_programs() / "llm")
    tools = ["-T", "llm_version"] if errand.mode == "tool" else []
    command = [program, "-m", model, *tools, errand.prompt]
    return Start(command, variables | {"LLM_USER_PATH": str(errand.folder / "llm")})


def _llm_anthropic(errand: Errand) -> Start:
    variables = {"ANTHROPIC_BASE_URL": errand.anthropic_url, "ANTHROPIC_API_KEY": errand.token}
    return _llm(errand, "claude-sonnet-4.6", variables)


def _llm_openai(errand: Errand) -> Start:
    model = {
        "model_id": "daypass",
        "model_name": GPT,
        "api_base": errand.openai_url,
        "api_key_name": "daypass",
        "supports_tools": True,
    }
    # JSON is YAML.
    written(errand.folder / "llm" / "extra-openai-models.yaml", json.dumps([model]))
    written(errand.folder / "llm" / "keys.json", json.dumps({"daypass": errand.token}))
    return _llm(errand, "daypass", {})


STREAM_ONLY = frozenset({"stream"})
STREAM_AND_TOOL = frozenset({"stream", "tool"})
CLIENTS = (
    Client(
        "aider, anthropic",
        "aider anthropic",
        _aider_programs,
        _aider_anthropic,
        STREAM_ONLY,
    ),
    Client("aider, openai", "aider openai", _aider_programs, _aider_openai, STREAM_ONLY),
    Client("llm, anthropic", "anthropic", _llm_programs, _llm_anthropic, STREAM_AND_TOOL),
    Client("llm, openai", "openai", _llm_programs, _llm_openai, STREAM_AND_TOOL),
)
