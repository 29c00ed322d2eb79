"""TypeScript SDKs, in a program of a few lines (`programs/sdks.mjs`)."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.clients.installed import node, node_modules, typescript_sdk
from tests.clients.matrix.client import Client, Errand, Start

HERE = Path(__file__).resolve().parent


def _client(
    name: str,
    program: str,
    figures: str,
    packages: Callable[[], Path],
    variables: Callable[[Errand], Mapping[str, str]],
) -> Client:
    def start(errand: Errand) -> Start:
        # The program lies beside its packages, as in a project.
        shutil.copy(HERE / "programs" / "sdks.mjs", errand.folder)
        (errand.folder / "node_modules").symlink_to(packages())
        words = [errand.prompt, errand.mode, program]
        return Start([str(node()), str(errand.folder / "sdks.mjs"), *words], variables(errand))

    return Client(name, figures, packages, start)


def _token(errand: Errand) -> Mapping[str, str]:
    return {"ANTHROPIC_BASE_URL": errand.anthropic_url, "ANTHROPIC_AUTH_TOKEN": errand.token}


def _federation(errand: Errand) -> Mapping[str, str]:
    return errand.federation


def _ours(errand: Errand) -> Mapping[str, str]:
    return {
        "MATRIX_ANTHROPIC_URL": errand.anthropic_url,
        "MATRIX_OPENAI_URL": errand.openai_url,
        "MATRIX_TOKEN": errand.token,
    }


def _openai_sdk() -> Path:
    return node_modules(HERE / "locks" / "typescript_openai")


def _ai_sdk() -> Path:
    return node_modules(HERE / "locks" / "ai_sdk")


CLIENTS = (
    _client("@anthropic-ai/sdk", "anthropic", "anthropic", typescript_sdk, _token),
    _client(
        "@anthropic-ai/sdk, four variables",
        "anthropic",
        "anthropic federated",
        typescript_sdk,
        _federation,
    ),
    _client("openai (npm), chat", "openai", "openai", _openai_sdk, _ours),
    _client("AI SDK, anthropic", "aiSdkAnthropic", "ai sdk", _ai_sdk, _ours),
    _client("AI SDK, openai", "aiSdkOpenai", "ai sdk responses", _ai_sdk, _ours),
)
