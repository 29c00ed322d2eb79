"""Secrets that cannot be shown, and references to them."""

import copy
import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from daypass_core.secret import (
    BadReference,
    Federation,
    Reference,
    Secret,
    SecretUnreadable,
    parse_reference,
    read_secret_file,
)

VALUE = "hunter2-hunter2"


def test_never_shown() -> None:
    """No usual way of printing a secret shows it."""
    secret = Secret(VALUE)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", "%s" % secret]  # noqa: UP031
    shown += [json.dumps({"key": secret}, default=str), repr({"key": [secret]})]
    assert not [text for text in shown if VALUE in text]
    assert str(secret) == "***"


def test_json_needs_help() -> None:
    """Plain JSON refuses a secret instead of writing it."""
    with pytest.raises(TypeError):
        json.dumps(Secret(VALUE))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_not_pickled(protocol: int) -> None:
    """A secret cannot leave the process by pickle."""
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(Secret(VALUE), protocol)


def test_copies_are_the_same() -> None:
    """Copying a record that holds a secret keeps the secret hidden and equal."""

    @dataclass
    class Record:
        key: Secret

    record = Record(Secret(VALUE))
    copied = copy.deepcopy(record)
    assert copied.key == record.key
    assert copy.copy(record.key) is record.key
    assert VALUE not in repr(asdict(record))


def test_equality() -> None:
    """Secrets are equal by value, never to a plain string, and cannot be dict keys."""
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret("other")
    assert Secret(VALUE) != VALUE
    with pytest.raises(TypeError, match="unhashable"):
        hash(Secret(VALUE))


def test_reveal() -> None:
    """The one way out gives the value."""
    assert Secret(VALUE).reveal() == VALUE


def test_empty() -> None:
    """An empty secret is refused as missing."""
    with pytest.raises(ValueError, match="empty"):
        Secret("")


def test_no_attribute_can_be_added() -> None:
    """A secret has no dictionary in which debuggers or serialisers find it."""
    assert not hasattr(Secret(VALUE), "__dict__")


def test_file(tmp_path: Path) -> None:
    """A secret file is read without its final newline and afresh each time."""
    file = tmp_path / "key"
    file.write_text(f"{VALUE}\n")
    assert read_secret_file(file).reveal() == VALUE
    file.write_text("rotated\r\n")
    assert read_secret_file(file).reveal() == "rotated"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"\n", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"a" * 70_000, "larger"),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """A file without a secret in it is an error that names the path."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SecretUnreadable, match=reason) as caught:
        read_secret_file(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (
            "vault://secret/llm/acme#api_key",
            Reference("vault", "llm/acme", mount="secret", field="api_key"),
        ),
        (
            "vault://kv2/llm/{tenant}#key",
            Reference("vault", "llm/{tenant}", mount="kv2", field="key"),
        ),
        (
            "vault://secret/llm/{tenant}-prod#key",
            Reference("vault", "llm/{tenant}-prod", mount="secret", field="key"),
        ),
        ("env://ANTHROPIC_API_KEY", Reference("env", "ANTHROPIC_API_KEY")),
        ("file:///run/keys/{tenant}", Reference("file", "/run/keys/{tenant}")),
        (
            "federation:///run/id.jwt?rule=fdrl_1&organization=org-1&workspace=wrkspc_1",
            Reference(
                "federation",
                "/run/id.jwt",
                field="rule=fdrl_1&organization=org-1&workspace=wrkspc_1",
            ),
        ),
    ],
)
def test_references(text: str, reference: Reference) -> None:
    """A reference is read and written back the same."""
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk-ant-a-key-pasted-by-mistake",
        "vault://secret",
        "vault://secret/llm",
        "vault://secret/llm#",
        "vault:///llm#key",
        "vault://secret/../sys#key",
        "vault://secret/llm//acme#key",
        "vault://secret/llm/%2e%2e/sys#key",
        "vault://secret/llm?version=1#key",
        "vault://{tenant}/llm#key",
        "vault://secret/llm#{tenant}",
        "vault://secret/llm/{other}#key",
        "env://",
        "env://A B",
        "env://A=B",
        "file://relative",
        "file:///run/../etc/shadow",
        "file:///a\x00b",
        "https://secret",
        "federation:///run/id.jwt",
        "federation:///run/id.jwt?rule=fdrl_1",
        "federation:///run/id.jwt?rule=&organization=org-1",
        "federation:///run/id.jwt?rule=fdrl_1&organization=org-1&rule=fdrl_2",
        "federation:///run/id.jwt?rule=fdrl_1&organization=org-1&other=1",
        "federation:///run/id.jwt?rule=fdrl_1&organization=a%20b",
        "federation://relative?rule=fdrl_1&organization=org-1",
        "federation:///run/../id.jwt?rule=fdrl_1&organization=org-1",
    ],
)
def test_bad_references(text: str) -> None:
    """What is not exactly a reference is refused with the expected form."""
    with pytest.raises(BadReference, match=r"expected|\{tenant\}"):
        parse_reference(text)


@pytest.mark.parametrize("prefix", ["", "vault://", "env://k-", "file://", "https://"])
def test_pasted_keys_are_not_repeated(prefix: str) -> None:
    """A key pasted where a reference belongs is not in the message."""
    with pytest.raises(BadReference) as caught:
        parse_reference(f"{prefix}{VALUE}")
    assert VALUE not in str(caught.value)


def test_for_tenant() -> None:
    """The template is filled with the tenant's name and nothing that leaves its place."""
    reference = parse_reference("vault://secret/llm/{tenant}#key")
    assert reference.per_tenant
    assert str(reference.for_tenant("acme")) == "vault://secret/llm/acme#key"
    assert not reference.for_tenant("acme").per_tenant
    for name in ("", "../sys", "a/b", "Acme", "a#b"):
        with pytest.raises(BadReference):
            reference.for_tenant(name)


def test_federation() -> None:
    """An identity's reference says as whom it is exchanged, in one order whatever was written."""
    text = "federation:///run/id.jwt?organization=org-1&service_account=svac_1&rule=fdrl_1"
    reference = parse_reference(text)
    assert reference.federation == Federation("fdrl_1", "org-1", "svac_1")
    assert str(reference).endswith("?rule=fdrl_1&organization=org-1&service_account=svac_1")
    assert parse_reference(str(reference)) == reference
    with pytest.raises(ValueError, match="none of an identity"):
        _ = parse_reference("file:///run/key").federation
