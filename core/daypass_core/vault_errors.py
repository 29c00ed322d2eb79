"""What can go wrong with Vault or OpenBao, in three words of ours, and the one translation.

The difference matters to callers: `VaultUnavailable` passes (keep the last good value),
`VaultRefused` needs an operator, `VaultMissing` means there is nothing to read. Messages name
mount, path and field, never values. Used by `vault`; nobody else sees an exception of hvac.
"""

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import hvac.exceptions as vault_errors

_T = TypeVar("_T")
# Vault answers 403 to a bad token, an expired one and a missing policy alike.
_REFUSED = (
    vault_errors.Forbidden,
    vault_errors.Unauthorized,
    vault_errors.InvalidRequest,
    vault_errors.UnsupportedOperation,
    vault_errors.ParamValidationError,
)


class VaultError(Exception):
    """Base of all."""


class VaultUnavailable(VaultError):
    """Vault cannot answer now: down, sealed, too slow, redirecting, or another answers for it."""


class VaultBusy(VaultUnavailable):
    """Vault is there, and answers that its rate limit is reached (429), not for how long."""


class VaultRefused(VaultError):
    """Vault answered no: credentials or policy."""


class VaultMissing(VaultError):
    """The path, its latest version, or the field does not exist or is empty."""


def translated(request: Callable[[], _T], what: str, check: str = "token, policy and path") -> _T:
    """Run one hvac request and turn every foreign exception into one of ours.

    `what` names the request in the message, `check` what a refusal may be due to. Raises the four
    above.
    """
    try:
        return request()
    except vault_errors.InvalidPath as error:
        if not _is_of_vault(error):
            raise VaultUnavailable(f"{what} failed: the answer 404 is not Vault's") from None
        raise VaultMissing(f"{what}: no such path or its latest version is deleted") from None
    except _REFUSED:
        raise VaultRefused(f"{what} was refused; check {check}") from None
    except vault_errors.VaultDown:
        raise VaultUnavailable(f"{what} failed: sealed or in standby") from None
    except vault_errors.RateLimitExceeded:
        raise VaultBusy(f"{what} failed: RateLimitExceeded") from None
    except Exception as error:
        # Of requests, of the system where a CA file is being replaced, and whatever hvac stumbles
        # over in an answer that is not Vault's: whoever keeps keys fresh must live on.
        _unavailable(what, error)


def _is_of_vault(error: vault_errors.VaultError) -> bool:
    """Say whether a 404 is Vault's own; what stands before it may have one for "not now"."""
    try:
        said = json.loads(error.text or "")
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and not said.keys().isdisjoint({"errors", "data"})


def _unavailable(what: str, error: Exception) -> NoReturn:
    # The class only: texts of requests hold whole URLs, texts of Vault may hold anything.
    raise VaultUnavailable(f"{what} failed: {type(error).__name__}") from None


def body_of(answer: object, what: str) -> dict[str, Any]:
    """Return the decoded body; hvac hands out the raw response for whatever is not 200."""
    if not isinstance(answer, dict):
        raise VaultUnavailable(f"{what} was redirected; set the address of the active node")
    return answer
