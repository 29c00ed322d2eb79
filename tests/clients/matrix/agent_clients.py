"""Coding agents: Claude Code, Codex, opencode, pi. They always stream, with tools of their own."""

import json
import platform
from pathlib import Path

from tests.clients.installed import claude_code, node, node_modules
from tests.clients.matrix.client import CLAUDE, Client, Errand, Start, written

LOCKS = Path(__file__).resolve().parent / "locks"
STREAMING = frozenset({"stream", "tool"})
CODEX_MODEL = "gpt-5.5"
TRIPLES = {"x86_64": "x64/vendor/x86_64", "aarch64": "arm64/vendor/aarch64"}


def _claude(errand: Errand, variables: dict[str, str]) -> Start:
    # Without the flag it also asks hosts of its maker, which no test reaches.
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    command = [str(claude_code()), "-p", errand.prompt, "--model", CLAUDE]
    return Start([*command, "--allowedTools", "Bash(echo:*)"], variables | quiet)


def _claude_token(errand: Errand) -> Start:
    token = {"ANTHROPIC_BASE_URL": errand.anthropic_url, "ANTHROPIC_AUTH_TOKEN": errand.token}
    return _claude(errand, token)


def _claude_federated(errand: Errand) -> Start:
    return _claude(errand, dict(errand.federation))


def _codex_packages() -> Path:
    return node_modules(LOCKS / "codex")


def _codex(errand: Errand) -> Start:
    home = errand.folder / ".codex"
    written(
        home / "config.toml",
        f'model = "{CODEX_MODEL}"\n'
        'model_provider = "daypass"\n'
        # Unasked it offers the provider's, which no network of the sandbox holds back.
        'web_search = "disabled"\n'
        "[model_providers.daypass]\n"
        'name = "daypass"\n'
        f'base_url = "{errand.openai_url}"\n'
        'wire_api = "responses"\n'
        'env_key = "DAYPASS_TOKEN"\n',
    )
    package = _codex_packages() / "@openai"
    program = package / f"codex-linux-{TRIPLES[platform.machine()]}-unknown-linux-musl/bin/codex"
    # The sandbox is what it runs in; its own would need rights that containers lack.
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    variables = {"CODEX_HOME": str(home), "DAYPASS_TOKEN": errand.token}
    return Start([str(program), "exec", *flags, errand.prompt], variables)


def _opencode_packages() -> Path:
    return node_modules(LOCKS / "opencode")


def _opencode(errand: Errand) -> Start:
    options = {"baseURL": f"{errand.anthropic_url}/v1", "apiKey": errand.token}
    settings = {
        "model": f"anthropic/{CLAUDE}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"anthropic": {"options": options, "models": {CLAUDE: {"name": "model"}}}},
    }
    written(errand.folder / ".config" / "opencode" / "opencode.json", json.dumps(settings))
    program = _opencode_packages() / "opencode-linux-x64" / "bin" / "opencode"
    quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Start([str(program), "run", errand.prompt], quiet)


def _pi_packages() -> Path:
    return node_modules(LOCKS / "pi")


def _pi(errand: Errand) -> Start:
    providers = {"providers": {"anthropic": {"baseUrl": errand.anthropic_url}}}
    written(errand.folder / ".pi" / "agent" / "models.json", json.dumps(providers))
    program = (_pi_packages() / ".bin" / "pi").resolve()
    words = ["-p", "--provider", "anthropic", "--model", CLAUDE, errand.prompt]
    quiet = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}
    return Start([str(node()), str(program), *words], quiet | {"ANTHROPIC_API_KEY": errand.token})


CLIENTS = (
    Client("Claude Code", "claude code", claude_code, _claude_token, STREAMING),
    Client(
        "Claude Code, four variables",
        "claude code federated",
        claude_code,
        _claude_federated,
        STREAMING,
    ),
    Client("Codex", "codex", _codex_packages, _codex, STREAMING),
    # A second request asks for the title of the session.
    Client("opencode", "opencode", _opencode_packages, _opencode, STREAMING, asks=2),
    Client("pi", "pi", _pi_packages, _pi, STREAMING),
)
