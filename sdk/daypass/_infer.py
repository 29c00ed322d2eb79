"""`LLMProxyClient`: a prompt in, a completion out, for code that wants no client library.

It speaks `POST /v1/infer`, which the proxy maps to the default model of the token's scope with the
checks, holds and bills of that model's own API.
"""

from __future__ import annotations

from daypass._errors import Refused
from daypass._http import Answer, Origin, may_renew, refusal
from daypass._token import TokenProvider

PATH = "/v1/infer"
# As long as official clients wait for an answer that does not stream.
ANSWER_SECONDS = 600.0


class LLMProxyClient:
    """One proxy, one day pass; safe to share between threads.

    `url` is the proxy (default: what the environment names). For asyncio:
    `await asyncio.to_thread(client.call, prompt)`. Raises `SettingsError` when the sandbox has no
    launch credential.
    """

    def __init__(self, url: str | None = None, *, provider: TokenProvider | None = None) -> None:
        self._provider = provider or TokenProvider(url)
        self._origin = Origin(self._provider.base_url, answer_seconds=ANSWER_SECONDS)

    def call(self, prompt: str, *, max_tokens: int | None = None) -> str:
        """What the model says to `prompt`, in at most `max_tokens` (the proxy's default: 1,024).

        Raises `Refused` (`status` 402: the budget is used up), `Revoked`, `Unavailable` with
        `retry_after` for what passes, `Unreachable`. Nothing is repeated but a call whose token
        had ended, for a second call may be billed a second time.
        """
        body: dict[str, object] = {"prompt": prompt}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        token = self._provider.token()
        answer = self._ask(token, body)
        told = answer.headers
        if may_renew(answer.status, told.get("x-should-retry"), told.get("www-authenticate")):
            answer = self._ask(self._provider.token(rejected=token), body)
        if answer.status != 200:
            raise refusal(answer)
        found = answer.json()
        said = found.get("completion") if isinstance(found, dict) else None
        if not isinstance(said, str):
            raise Refused(
                "the answer has no completion",
                hint="check that the address is a daypass proxy",
                status=answer.status,
            )
        return said

    def __repr__(self) -> str:
        """Name the proxy, never a token."""
        return f"LLMProxyClient({self._provider.base_url!r})"

    def _ask(self, token: str, body: dict[str, object]) -> Answer:
        headers = {"authorization": f"Bearer {token}"}
        return self._origin.call("POST", PATH, body=body, headers=headers)
