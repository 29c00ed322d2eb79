"""Official Anthropic clients that carry a day pass instead of a key.

    from daypass.anthropic import client
    message = client().messages.create(model=…, max_tokens=…, messages=[…])

The client is the official one, unchanged; only its `credentials=` provider is ours. The four
environment variables of a sandbox do the same without any import of ours: this module is for
those who want one token shared between processes, or a launch credential from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daypass._errors import DaypassError, NotInstalled, SettingsError, in_both_families
from daypass._settings import environment
from daypass._token import TokenProvider

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.lib.credentials import AccessToken


class Credentials:
    """A `credentials=` provider over a `TokenProvider`.

    Every token carries `expires_at=0`, which asks the official client to come back before each
    request: the cache, the renewal at 80 % and the single flight are the provider's.
    """

    def __init__(self, provider: TokenProvider, token_class: type[AccessToken]) -> None:
        self._provider = provider
        self._token_class = token_class
        self._last: str | None = None

    def __call__(self, *, force_refresh: bool = False) -> AccessToken:
        """The token to send; `force_refresh` says that the last one was answered with 401."""
        rejected = self._last if force_refresh else None
        try:
            self._last = self._provider.token(rejected=rejected)
        except DaypassError as error:
            from anthropic import AnthropicError

            raise in_both_families(error, AnthropicError) from error.__cause__
        return self._token_class(token=self._last, expires_at=0)


def client(*, provider: TokenProvider | None = None, **options: Any) -> Anthropic:
    """An `anthropic.Anthropic` on a day pass; `options` go to its constructor.

    Raises `SettingsError` when the sandbox has no launch credential or still carries a provider
    key, and `NotInstalled` without the `anthropic` package.
    """
    official, settled = _prepare(provider, options)
    made: Anthropic = official.Anthropic(**settled)
    return made


def async_client(*, provider: TokenProvider | None = None, **options: Any) -> AsyncAnthropic:
    """An `anthropic.AsyncAnthropic` on a day pass; otherwise as `client`."""
    official, settled = _prepare(provider, options)
    made: AsyncAnthropic = official.AsyncAnthropic(**settled)
    return made


def renewing(
    provider: TokenProvider | None = None, base_url: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """The official package, and what its clients are to be given: `base_url` and `credentials`.

    For libraries that make their own clients. Raises as `client`.
    """
    try:
        import anthropic
        from anthropic.lib.credentials import AccessToken
    except ImportError:
        raise NotInstalled(
            "the anthropic package (0.98 or newer) is not installed",
            hint="run: pip install 'anthropic>=2.14'",
        ) from None
    # Some versions send this key beside or instead of the day pass; and a sandbox that holds a
    # provider key has lost what daypass is for.
    if environment().get("ANTHROPIC_API_KEY"):
        raise SettingsError(
            "ANTHROPIC_API_KEY is set and would shadow the day pass",
            hint="unset it, or start the program with `daypass run`, which removes it",
        )
    provider = provider or TokenProvider(base_url)
    return anthropic, {
        "base_url": provider.base_url,
        "credentials": Credentials(provider, AccessToken),
    }


def _prepare(provider: TokenProvider | None, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    base_url = options.pop("base_url", None)
    official, given = renewing(provider, str(base_url) if base_url else None)
    return official, {**given, **options}
