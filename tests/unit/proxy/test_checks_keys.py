"""The search for leaked keys: of a key's forms, those of the key before stay searched for."""

import re

from daypass_core.secret import parse_reference
from daypass_proxy.keyring import Keyring
from daypass_proxy.providers.anthropic import Anthropic
from tests.fakes.clock import FakeClock
from tests.fakes.keys import FakeVault

KEY, NEWER = "sk-ant-fake-0123456789abcdef", "sk-ant-fake-fedcba9876543210"


async def test_both_keys_are_searched_for_after_a_change() -> None:
    """Row 15: after a rotation the answer to an older call may still hold the key before."""
    vault = FakeVault(acme=KEY)
    reference = parse_reference("vault://secret/llm/acme#api_key")
    ring = Keyring(
        {"anthropic": {"acme": reference}}, env_secrets={}, vault=vault, clock=FakeClock()
    )
    await ring.header_for("acme", Anthropic())
    assert ring.leaks("acme", "anthropic", KEY.encode())
    assert not ring.leaks("acme", "anthropic", NEWER.encode())
    vault.secrets["acme"] = NEWER
    await ring.read_all()
    assert ring.leaks("acme", "anthropic", NEWER.encode())
    assert ring.leaks("acme", "anthropic", KEY.encode())
    assert not ring.leaks("acme", "anthropic", b"sk-ant-fake-aaaaaaaaaaaaaaaa")


async def test_key_without_forms_is_found_nowhere() -> None:
    """Row 15: a key too short to be told from other words is not found in every answer."""
    vault = FakeVault(acme="abc")
    reference = parse_reference("vault://secret/llm/acme#api_key")
    ring = Keyring(
        {"anthropic": {"acme": reference}}, env_secrets={}, vault=vault, clock=FakeClock()
    )
    await ring.header_for("acme", Anthropic())
    assert not ring.leaks("acme", "anthropic", b"Sun, 29 Nov 2026 12:00:00 GMT")


async def test_search_leaves_no_key_behind() -> None:
    """B58: the patterns that find a key are held by the keyring, not by what made them."""
    vault = FakeVault(acme=KEY)
    reference = parse_reference("vault://secret/llm/acme#api_key")
    ring = Keyring(
        {"anthropic": {"acme": reference}}, env_secrets={}, vault=vault, clock=FakeClock()
    )
    await ring.header_for("acme", Anthropic())
    assert ring.leaks("acme", "anthropic", KEY.encode())
    assert KEY[:12] not in repr(vars(re)["_cache"]).replace("\\", "")
