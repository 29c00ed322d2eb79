"""What every check of a body asks of the scope: models, features, domains.

The base of the checks of all dialects; what it refuses is 400 with the field, and with the feature
that a profile would have to name.
"""

import re
from dataclasses import dataclass, field

from daypass_core.problem import Code, refuse
from daypass_core.scope import Detail
from daypass_proxy.providers.places import Where, invalid, not_allowed, shown, words
from daypass_proxy.providers.reach import MAX_REACHED, domain_allowed, url_allowed

MAX_OUTPUT_TOKENS = 1_000_000
"""No answer is so long; no scope and no price says what a hundred million tokens would cost."""
MAX_MODELS = 64
"""Each is priced and held; the APIs take a handful. Nor may more fallbacks be listed."""
_MODEL = re.compile(r"[!-~]{1,256}")


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
