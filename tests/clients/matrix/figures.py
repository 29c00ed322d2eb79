"""How many requests real clients make at most: `FIGURES`, measured directly, without us.

Rows are clients (`Client.figures`), columns answers (`Scenario.figure`); a figure counts requests
for a model's words of one prompt, until the client gives up. They were measured with a provider
that gives the answer for ever. A proxy that makes a client ask more often costs its owner money.
"""

ALL = ("401", "401 for good", "400", "403", "402", "429", "529 once", "cut")


def _row(**others: int) -> dict[str, int]:
    """One request for every refusal, but for these."""
    known = {"unauthorized": "401", "stopped": "401 for good", "bad": "400", "forbidden": "403"}
    known |= {"payment": "402", "rate": "429", "busy": "529 once", "cut": "cut"}
    assert others.keys() <= known.keys()
    return dict.fromkeys(ALL, 1) | {known[name]: figure for name, figure in others.items()}


_SDK = _row(rate=3, busy=2)
_CLAUDE_CODE = {"bad": 6, "rate": 11, "busy": 2, "cut": 4}

FIGURES = {
    "anthropic": _SDK,
    # A second call after an exchange.
    "anthropic federated": _SDK | {"401": 2},
    "openai": _SDK,
    "ai sdk": _SDK,
    # There a spent budget is a 429, at which it does not heed that it should not retry.
    "ai sdk responses": _SDK | {"402": 3},
    "litellm anthropic": _row(),
    "claude code": _row(unauthorized=10, **_CLAUDE_CODE),
    "claude code federated": _row(unauthorized=2, **_CLAUDE_CODE),
    "codex": _row(unauthorized=6, stopped=6, forbidden=6, rate=6, busy=2, cut=6),
    "opencode": _row(rate=9, busy=2, cut=6),
    "pi": _row(rate=12, busy=2, cut=4),
    "aider anthropic": _row(forbidden=8, payment=8, rate=8, busy=2, cut=8),
    "aider openai": _row(payment=8, rate=24, busy=2, cut=8),
}
