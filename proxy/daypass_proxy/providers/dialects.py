"""The dialects by name: how the bodies of each are checked.

The name goes with a `Call`; `checkers.worker` finds the check by it in another process, and `meter`
what reads the answers.
"""

from collections.abc import Mapping

from daypass_proxy.providers import Check
from daypass_proxy.providers.anthropic_body import check_body
from daypass_proxy.providers.openai import ENDPOINTS

CHECKS: Mapping[str, Check] = {
    "anthropic": check_body,
    **{each.dialect: each.check for each in ENDPOINTS.values()},
}
