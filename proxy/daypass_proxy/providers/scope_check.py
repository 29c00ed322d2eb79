"""What every check of a body asks of the scope: models, features, domains.

The base of the checks of all dialects; what it refuses is 400 with the field, and with the feature
that a profile would have to name.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from daypass_core.problem import Code, refuse
from daypass_core.scope import Detail
from daypass_proxy.providers.places import (
    Chain,
    Where,
    invalid,
    not_allowed,
    shown,
    unrolled,
    words,
)
from daypass_proxy.providers.reach import MAX_REACHED, domain_allowed, url_allowed

MAX_OUTPUT_TOKENS = 1_000_000
"""No answer is so long; no scope and no price says what a hundred million tokens would cost."""
MAX_MODELS = 64
"""Each is priced and held; the APIs take a handful. Nor may more fallbacks be listed."""
OPEN = "open"
_LONG = 64
_MODEL = re.compile(r"[!-~]{1,256}")
# What the names of fields tell that nobody here knows; `baseUrl` and `base-url` are `base_url`.
_NAMES_A_MODEL = re.compile(r"(?:^|_)(?:models?(?:_ids?|_names?)?|fallbacks?|engines?)$")
_LEADS_AWAY = re.compile(
    r"(?:^|_)(?:url|uri|href|src|link|addresse|address|endpoint|host|server|origin|base|webhook"
    r"|proxy|proxie)s?$"
)
_INNER_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")
_OF_A_MODEL = ("id", "name", "value")
"""By what an object in the place of a model may name it."""
_TOKENS = frozenset({"max_tokens", "max_output_tokens", "max_completion_tokens", "n_predict"})
_STATE = frozenset(
    {"api_key", "authorization", "authorization_token", "bill_to", "billing_policy"}
    | {"connector_id", "container", "fallback_credit_token", "inference_geo", "service_tier"}
    | {"container_id", "conversation", "file_id", "file_ids", "organization", "previous_message_id"}
    | {"previous_response_id", "project", "prompt_id", "skill_id", "skills", "thread", "thread_id"}
    | {"token", "tunnel_id", "user_profile_id", "vector_store_ids", "workspace_id"}
)
"""Names that stand for somebody's state, credential or bill, or for another price."""


@lru_cache(maxsize=1024)
def _told_by(name: str) -> str | None:
    """Return what the name of an unknown field tells of it: a kind of check, or else the feature
    that it needs; None where it tells nothing."""
    plain = _INNER_WORD.sub("_", unicodedata.normalize("NFKC", name)).casefold()
    if plain in _STATE:
        return plain
    if plain in _TOKENS:
        return "tokens"
    if plain.endswith("domains"):
        return "domains"
    if _NAMES_A_MODEL.search(plain):
        return "model"
    return "address" if _LEADS_AWAY.search(plain) else None


@dataclass(slots=True)
class ScopeCheck:
    """One pass over one body."""

    detail: Detail
    models: list[str] = field(default_factory=list)
    reached: int = 0

    def model(self, value: object, where: Where) -> None:
        """Take a model over that is in the scope; raises Refusal."""
        # Thousands of tools may name a model each, but few different ones.
        if isinstance(value, str) and value in self.models:
            return
        if not isinstance(value, str) or not _MODEL.fullmatch(value):
            place = words(where)
            raise invalid(place, f"{place} must be the name of a model")
        if not self.detail.allows_model(value):
            place = words(where)
            of = "" if place == "model" else f" ({place})"
            raise refuse(
                Code.MODEL_NOT_ALLOWED,
                f"model {value}{of} is not allowed for this sandbox",
                hint=f"allowed: {', '.join(self.detail.models)}",
                field=place,
            )
        if len(self.models) == MAX_MODELS:
            place = words(where)
            raise invalid(place, f"{place} is one model too many; {MAX_MODELS} may be named")
        self.models.append(value)

    def tokens(self, value: object, where: Where) -> int:
        """Return a limit of output tokens that is within the cap; raises Refusal."""
        cap = min(self.detail.max_output_tokens or MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
        # type() and not isinstance(): true is an int in Python (attack row 39).
        if type(value) is not int or not 1 <= value <= cap:
            place = words(where)
            raise invalid(place, f"{place} must be a whole number from 1 to {cap} here")
        return value

    def need(self, feature: str, where: Where, what: str = "") -> None:
        """Refuse unless the scope names `feature`."""
        if feature in self.detail.features:
            return
        place = words(where)
        raise not_allowed(
            place,
            f"{what or place} is not allowed for this sandbox"
            + (f" ({place})" if what else "")
            + f'; it needs the feature "{shown(feature)}" in the profile',
        )

    def unknown(self, feature: str, value: dict[str, Any], where: Where, what: str = "") -> None:
        """Refuse what nobody here knows, unless the scope names it or is open for all of it.

        It is a kind (`what`) of the object `value`, or the one field of it. Even in an open scope
        its parts are looked at, as far as their names tell what they are.
        """
        if self.detail.body == OPEN and feature not in self.detail.features:
            self._look_into(value, where)
        else:
            self.need(feature, (*where, "type" if what else shown(feature)), what)

    def gate(self, kind: str, where: Where) -> str | None:
        """Return the feature that a known kind needs, wherever it stands; None for none.

        Each dialect says its own; raises Refusal for a kind that no feature allows.
        """
        raise NotImplementedError

    def inside(self, kind: str, value: dict[str, Any], where: Where) -> None:
        """Check a kind that needs a feature, and has it, inside of something unknown.

        A tool that runs at the provider keeps its rules there. Each dialect says its own.
        """
        raise NotImplementedError

    def _look_into(self, value: object, chain: Chain) -> None:
        """Check everything that looks like a model, an address, a limit or somebody's state."""
        if isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, dict | list):
                    self._look_into(each, (chain, index))
        if not isinstance(value, dict):
            return
        kind = value.get("type")
        gate = self.gate(kind, unrolled((chain, "type"))) if isinstance(kind, str) else None
        if gate is not None:
            self.need(gate, unrolled((chain, "type")), f"type {shown(str(kind))}")
            self.inside(str(kind), value, unrolled(chain))
        for name, each in value.items():
            # A long name is no field that there will be, and is not remembered.
            told = _told_by(name) if len(name) <= _LONG else _told_by.__wrapped__(name)
            if told is None:
                if isinstance(each, dict | list):
                    self._look_into(each, (chain, shown(name)))
            elif each is not None and each != []:
                self._telling(told, each, unrolled((chain, shown(name))))

    def _telling(self, told: str, value: object, where: Where) -> None:
        """Check the value of a field whose name tells what it is."""
        if told in ("address", "model"):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, list):
                    self._telling(told, each, where)
                elif isinstance(each, dict):
                    self._look_into(each, where)
                    self._named_in(told, each, where)
                elif told == "model":
                    self.model(each, where)
                elif not (isinstance(each, str) and each[:5].lower() == "data:"):
                    self.url(each, where)
        elif told == "tokens":
            self.tokens(value, where)
        elif told == "domains":
            self.within_domains(value, words(where))
        else:
            self.need(told, where)

    def _named_in(self, told: str, value: dict[str, Any], where: Where) -> None:
        """Check what an object in the place of a model or address says of itself.

        It may be a part of a schema as well, whose words are none of either.
        """
        for name, each in value.items():
            if not isinstance(each, str):
                continue
            if told == "model" and name in _OF_A_MODEL:
                self.model(each, (*where, name))
            elif told == "address" and _ADDRESS.match(each):
                self.url(each, (*where, shown(name)))

    def url(self, value: object, where: Where) -> None:
        """Refuse a URL that is not https within the domains of the scope."""
        place = words(where)
        self.reach(1, place)
        if not url_allowed(value, self.detail.allowed_domains):
            raise not_allowed(
                place,
                f"{place} must be an https URL within the domains of this sandbox:"
                f" {self.domains()}",
            )

    def within_domains(self, value: object, place: str) -> None:
        """Refuse what is not a list of domains within those of the scope."""
        allowed = self.detail.allowed_domains
        if isinstance(value, list):
            self.reach(len(value), place)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(item, str) and domain_allowed(item, allowed) for item in value)
        ):
            raise not_allowed(
                place,
                f"{place} must list domains within those of this sandbox: {self.domains()}",
            )

    def reach(self, more: int, place: str) -> None:
        """Bound how many domains and URLs a body names."""
        self.reached += more
        if self.reached > MAX_REACHED:
            raise invalid(place, f"{place}: a body may name {MAX_REACHED} domains and URLs in all")

    def domains(self) -> str:
        """Return the domains of the scope in words."""
        return ", ".join(self.detail.allowed_domains) or "none are listed"
