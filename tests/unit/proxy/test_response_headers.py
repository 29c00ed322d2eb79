"""Which headers of the provider a sandbox sees, and which of the sandbox's the provider sees.

Open where the provider wants them open, closed for what is the organisation's (B37, B48).
"""

import pytest

from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.providers.anthropic import Anthropic, headers_up

ORGANISATION = (
    b"anthropic-ratelimit-requests-limit",
    b"anthropic-ratelimit-input-tokens-remaining",
    b"anthropic-ratelimit-unified-status",
    b"anthropic-ratelimit-unified-reset",
    b"Anthropic-RateLimit-Tokens-Reset",
    b"anthropic-priority-input-tokens-remaining",
    b"anthropic-priority-output-tokens-limit",
    b"anthropic-fast-output-tokens-reset",
    b"anthropic-new-tier-tokens-limit",
    b"anthropic-organization-id",
    b"anthropic-workspace-id",
)
OTHERS = (
    b"set-cookie", b"server", b"via", b"cf-ray", b"cf-cache-status", b"x-ratelimit-limit",
    b"date", b"x-envoy-upstream-service-time", b"alt-svc", b"strict-transport-security",
    b"content-length", b"content-encoding", b"transfer-encoding", b"connection", b"keep-alive",
    b"proxy-authenticate", b"www-authenticate", b"trailer", b"upgrade", b"location",
)  # fmt: skip


@pytest.mark.parametrize("name", [*ORGANISATION, *OTHERS])
def test_stays_here(name: bytes) -> None:
    """B48: limits and ids of the organisation, cookies, servers and framing are not passed on."""
    assert Anthropic().response_headers([(name, b"1")]) == ()


@pytest.mark.parametrize(
    "name",
    [
        b"request-id",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        b"content-type",
        b"anthropic-version",
        b"anthropic-beta-note",
        b"anthropic-something-of-tomorrow",
    ],
)
def test_passes(name: bytes) -> None:
    """B48: what steers a client or speaks of its call passes as it came, in lower case."""
    assert Anthropic().response_headers([(name.title(), b"A b,C")]) == ((name, b"A b,C"),)


def test_first_of_two_counts() -> None:
    """A header that must be single is single: the client reads the one that we went by."""
    twice = [
        (b"content-type", b"text/event-stream"),
        (b"anthropic-x", b"1"),
        (b"Content-Type", b"application/json"),
        (b"anthropic-x", b"2"),
    ]
    assert Anthropic().response_headers(twice) == (
        (b"content-type", b"text/event-stream"),
        (b"anthropic-x", b"1"),
        (b"anthropic-x", b"2"),
    )


UP: HeaderPairs = (
    (b"anthropic-beta", b"a-2026-01-01,b-2026-02-02"),
    (b"anthropic-beta", b"c-2026-03-03 , d"),
    (b"anthropic-version", b"2026-10-21"),
    (b"anthropic-dangerous-direct-browser-access", b"true"),
    (b"anthropic-of-tomorrow", b"1"),
    (b"x-stainless-retry-count", b"0"),
    (b"x-stainless-helper", b"betatoolrunner, message-thread"),
    (b"x-claude-code-session-id", b"1c7"),
    (b"x-claude-code-of-tomorrow", b"1"),
    (b"x-app", b"cli"),
    (b"user-agent", b"claude-cli/2.1.332 (external, sdk-cli)"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
)


def test_goes_up() -> None:
    """B37: versions, betas and attribution go up unchanged and in order, known or not."""
    assert headers_up(UP) == UP


@pytest.mark.parametrize(
    "name",
    [
        b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key", b"cookie",
        b"proxy-authorization", b"host", b"connection", b"keep-alive", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"content-length", b"content-encoding", b"expect",
        b"accept-encoding", b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via",
        b"anthropic-workspace-id", b"anthropic-user-profile-id", b"anthropic-organization-id",
        b"openai-organization", b"openai-project", b"x-team", b"x-sandbox-id", b"traceparent",
    ],
)  # fmt: skip
def test_does_not_go_up(name: bytes) -> None:
    """B37: credentials, hop-by-hop, and what chooses whose data or bill, stay here."""
    assert headers_up(((name, b"1"), (b"x-app", b"cli"))) == ((b"x-app", b"cli"),)
