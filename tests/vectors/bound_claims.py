"""The claims that a token has only where they bind it: `source`, `act`, and `cnf`, which we refuse.

Each is a change to the claims of a good token. Used by `make_access_tokens`.
"""

from collections.abc import Mapping

Change = dict[str, object]

_TWO, _FOUR = ["grt_root", "grt_a"], ["grt_root", "grt_a", "grt_b", "grt_c"]


def accepted(payload: Mapping[str, object]) -> dict[str, Change]:
    """Return changes after which the token is good, by name."""
    subject = payload["sub"]
    return {
        "source of one network": {"source": ["10.0.0.0/8"]},
        "source of one address": {"source": ["192.0.2.7/32"]},
        "source of IPv6": {"source": ["2001:db8::/64"]},
        "source of eight networks": {"source": [f"10.{i}.0.0/16" for i in range(8)]},
        "two grants": {"grants": _TWO, "act": {"sub": f"{subject}/grant/grt_a"}},
        "four grants": {"grants": _FOUR, "act": nested(subject, _FOUR)},
    }


def refused(payload: Mapping[str, object]) -> dict[str, Change]:
    """Return changes after which the token is refused, by name."""
    return {**_sources(), **_actors(payload["sub"]), **_keys()}


def nested(subject: object, grants: list[str]) -> Change:
    """Return the `act` of a token with these grants: the leaf outermost, the root in none."""
    found: Change = {}
    for grant in grants[1:]:
        found = {"sub": f"{subject}/grant/{grant}", **({"act": found} if found else {})}
    return found


def _sources() -> dict[str, Change]:
    values: dict[str, object] = {
        "empty": [],
        "null": None,
        "a string": "10.0.0.0/8",
        "object": {"10.0.0.0/8": True},
        "of nine networks": [f"10.{i}.0.0/16" for i in range(9)],
        "without a prefix": ["192.0.2.7"],
        "with host bits set": ["10.0.0.1/8"],
        "with host bits set in IPv6": ["2001:db8::1/64"],
        "with a netmask": ["10.0.0.0/255.0.0.0"],
        "not in its shortest form": ["2001:0db8::/64"],
        "with leading zeros": ["010.0.0.0/8"],
        "with a scope id": ["fe80::%eth0/64"],
        "with a blank": [" 10.0.0.0/8"],
        "prefix too long": ["10.0.0.0/33"],
        "a word": ["first"],
        "a name": ["ci.example/32"],
        "of numbers": [167772160],
        "of lists": [["10.0.0.0/8"]],
        "good and bad": ["10.0.0.0/8", "any"],
    }
    return {f"source {name}": {"source": value} for name, value in values.items()}


def _actors(subject: object) -> dict[str, Change]:
    leaf = {"sub": f"{subject}/grant/grt_a"}
    upside_down = {"sub": f"{subject}/grant/grt_a", "act": {"sub": f"{subject}/grant/grt_b"}}
    three = ["grt_root", "grt_a", "grt_b"]
    return {
        "act of a stranger": {"act": {"sub": "somebody"}},
        "act of a root": {"act": {"sub": f"{subject}/grant/grt_root"}},
        "act null": {"act": None},
        "act empty": {"act": {}},
        "act missing with two grants": {"grants": _TWO},
        "act null with two grants": {"grants": _TWO, "act": None},
        "act a string": {"grants": _TWO, "act": f"{subject}/grant/grt_a"},
        "act a list": {"grants": _TWO, "act": [leaf]},
        "act of another grant": {"grants": _TWO, "act": {"sub": f"{subject}/grant/grt_b"}},
        "act of another sandbox": {"grants": _TWO, "act": {"sub": f"{subject}x/grant/grt_a"}},
        "act without the grant": {"grants": _TWO, "act": {"sub": subject}},
        "act with a member more": {"grants": _TWO, "act": {**leaf, "iss": "https://evil.test"}},
        "act with null nested": {"grants": _TWO, "act": {**leaf, "act": None}},
        "act nested upside down": {"grants": three, "act": upside_down},
        "act one level short": {"grants": three, "act": {"sub": f"{subject}/grant/grt_b"}},
        "act one level deep": {"grants": _TWO, "act": nested(subject, three)},
        "may_act": {"may_act": {"sub": "somebody"}},
    }


def _keys() -> dict[str, Change]:
    values: dict[str, object] = {
        "of a key": {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"},
        "of a certificate": {"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"},
        "empty": {},
        "null": None,
    }
    return {f"cnf {name}": {"cnf": value} for name, value in values.items()}
