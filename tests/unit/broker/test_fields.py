"""Strict reading of bodies and policy files."""

import pytest

from daypass_broker.fields import FieldError, Fields, read_json, read_yaml


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"{} {}", "body"),
        (b'{"a": NaN}', "body"),
        (b'{"a": -Infinity}', "body"),
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"b": {"a": 1, "a": 2}}', "a"),
        (b'{"a": "\\u0000"}', "body"),
        (b'{"a": "\\ud800"}', "body"),
        (b'{"\\udfff": 1}', "body"),
        (b"\xff", "body"),
        (b"\xef\xbb\xbf{}", "body"),
        (b"[" * 100_000, "body"),
        (b"[" * 40 + b"]" * 40, "body"),
        (b'{"a": ' + b"9" * 5000 + b"}", "body"),
    ],
)
def test_json_that_can_be_read_in_two_ways_is_refused(data: bytes, field: str) -> None:
    """Duplicate keys, NaN, broken text, two documents and endless nesting are refused."""
    with pytest.raises(FieldError) as error:
        read_json(data)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a: 1\na: 2", "line 2: a is given twice"),
        (b"a: &x [1]\nb: *x", "line 2: aliases are not read"),
        (b"a: &x [1]\n<<: *x", "line 2: aliases are not read"),
        (b"a: [1", "line"),
        (b"--- 1\n--- 2", "line"),
        (b"a: !!python/object/apply:os.system ['true']", "line 1"),
        (b"\xff", "policy: must be one YAML document"),
        (b'a: "\\0"', "body: text must not hold NUL"),
        (b"[" * 1200, "policy: must be one YAML document"),
    ],
)
def test_yaml_that_can_be_read_in_two_ways_is_refused(data: bytes, words: str) -> None:
    """Duplicate keys, aliases, tags and broken YAML are refused, with the line if there is one."""
    with pytest.raises(FieldError) as error:
        read_yaml(data)
    assert words in str(error.value)


def test_json_is_yaml_too() -> None:
    """A JSON document is read by the YAML reader as the same value."""
    data = b'{"a": [1, true, null, "x"], "b": {"c": "2.50"}}'
    assert read_yaml(data) == read_json(data)


def test_fields_that_nobody_took_are_unknown() -> None:
    """`done` names the first field left over, with its path."""
    fields = Fields({"a": "x", "b": 1}, "profiles.coding")
    fields.text("a")
    with pytest.raises(FieldError, match=r"^profiles\.coding\.b: unknown field$"):
        fields.done()


@pytest.mark.parametrize("value", [None, "a", [], 1])
def test_only_an_object_has_fields(value: object) -> None:
    """Anything but an object is refused."""
    with pytest.raises(FieldError, match="must be an object"):
        Fields(value)


def test_null_is_not_absent() -> None:
    """A field that is null is refused, one that is not there is None, and `must` refuses that."""
    fields = Fields({"a": None})
    with pytest.raises(FieldError, match="a: must not be null"):
        fields.text("a")
    assert fields.text("b") is None
    with pytest.raises(FieldError, match="b: is missing"):
        fields.must("b", fields.text("b"))


@pytest.mark.parametrize("value", [True, 1.0, "1", 0, 11, [1]])
def test_integers_are_integers(value: object) -> None:
    """A boolean, a float, a text or a number out of bounds is no integer of a field."""
    with pytest.raises(FieldError, match="a: must be an integer from 1 to 10"):
        Fields({"a": value}).integer("a", least=1, most=10)


@pytest.mark.parametrize("name", ["", "A", "-a", "a_b", "a" * 64, "a\n", "ä"])
def test_names_have_one_form(name: str) -> None:
    """Names of tenants, profiles and orchestrators match one pattern, as values and as keys."""
    with pytest.raises(FieldError):
        Fields({"a": name}).name("a")
    with pytest.raises(FieldError):
        list(Fields({"a": {name: {}}}).children("a"))
