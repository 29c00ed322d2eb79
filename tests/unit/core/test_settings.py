"""Settings: typed, all problems at once, never a value."""

from pathlib import Path
from typing import Any

import pytest

from daypass_core.settings import Listen, Reader, SettingsError, environment


def reader(**environ: str) -> Reader:
    """Make a reader over these variables."""
    return Reader(environ)


def test_values() -> None:
    """Every kind of setting is read into its type."""
    read = reader(
        T=" text ",
        I="12",
        N="-3",
        S="1.5",
        F="yes",
        P="/var/lib",
        U="https://api.test/prefix/",
        L="127.0.0.1:8700",
        LL="127.0.0.1:8700, unix:/run/proxy.sock",
        C="info",
    )
    assert read.text("T") == "text"
    assert read.integer("I", least=1, most=12) == 12
    assert read.integer("N", least=-5) == -3
    assert read.seconds("S") == 1.5
    assert read.flag("F") is True
    assert read.path("P") == Path("/var/lib")
    assert read.url("U") == "https://api.test/prefix"
    assert read.listen("L") == Listen("127.0.0.1", 8700)
    assert read.listens("LL") == (Listen("127.0.0.1", 8700), Listen(path="/run/proxy.sock"))
    assert read.choice("C", ("debug", "info")) == "info"
    assert read.parsed("I", int, 0) == 12
    read.done()


def test_defaults() -> None:
    """What is not set, or set to nothing, has its default, None included."""
    read = reader(EMPTY="", BLANK="  ")
    assert read.text("EMPTY", "a") == "a"
    assert read.text("BLANK", None) is None
    assert read.integer("X", 5) == 5
    assert read.seconds("X", None) is None
    assert read.flag("X") is False
    assert read.flag("X", True) is True
    assert read.path("X", None) is None
    assert read.url("X", "https://a") == "https://a"
    assert read.listens("X", ()) == ()
    read.done()


def test_all_problems_at_once() -> None:
    """One error names every setting at fault, and no value."""
    read = reader(I="sk-secret-1", S="sk-secret-2", F="sk-secret-3", U="sk-secret-4", L="sk-secret")
    read.text("T")
    read.integer("I")
    read.seconds("S")
    read.flag("F")
    read.url("U")
    read.listen("L")
    read.choice("I", ("a", "b"))
    read.problem("BOTH", "cannot be used with T")
    with pytest.raises(SettingsError) as caught:
        read.done()
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "T",
        "I",
        "S",
        "F",
        "U",
        "L",
        "I",
        "BOTH",
    ]
    assert "secret" not in str(caught.value)
    assert "T: is not set" in str(caught.value)


@pytest.mark.parametrize("value", ["1.0", "1e3", "0x10", "", "١٢", "12 34", "9" * 30, "6", "1"])
def test_bad_integers(value: str) -> None:
    """A whole number is digits within its bounds."""
    read = reader(I=value)
    read.integer("I", least=2, most=5)
    with pytest.raises(SettingsError, match="I: "):
        read.done()


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e9", "1s", "0.5"])
def test_bad_seconds(value: str) -> None:
    """A time span is a plain decimal number within its bounds."""
    read = reader(S=value)
    read.seconds("S", least=1.0, most=10.0)
    with pytest.raises(SettingsError, match="S: "):
        read.done()


@pytest.mark.parametrize(
    "value",
    [
        "api.test",
        "ftp://api.test",
        "https://",
        "https:///path",
        "https://user:password@api.test",
        "https://api.test?x=1",
        "https://api.test#x",
        "https://api.test:99999",
        "https://[::1",
        "https://api.test/a b",
        "https://api.test/\u00e9",
        "file:///etc",
    ],
)
def test_bad_urls(value: str) -> None:
    """A URL has an expected scheme and a host, and neither user, query nor fragment."""
    read = reader(U=value)
    read.url("U")
    with pytest.raises(SettingsError, match="U: must be a URL") as caught:
        read.done()
    assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:8700", Listen("127.0.0.1", 8700)),
        ("localhost:0", Listen("localhost", 0)),
        ("[::1]:8700", Listen("::1", 8700)),
        ("unix:/run/daypass/proxy.sock", Listen(path="/run/daypass/proxy.sock")),
    ],
)
def test_listen(text: str, listen: Listen) -> None:
    """An address to listen on is read and written back the same."""
    assert Listen.parse(text) == listen
    assert str(listen) == text
    assert listen.is_unix is text.startswith("unix:")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8700",
        ":8700",
        "::1:8700",
        "host:",
        "host:x",
        "host:70000",
        "host:-1",
        "unix:",
        "unix:a",
    ],
)
def test_bad_listen(text: str) -> None:
    """What is no address is refused with the expected form."""
    with pytest.raises(ValueError, match="must be"):
        Listen.parse(text)


def test_bad_path() -> None:
    """A path with a zero byte is none."""
    read = reader(P="/a\x00b")
    read.path("P")
    with pytest.raises(SettingsError, match="P: must be a path"):
        read.done()


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is a copy: nobody changes the process through it."""
    monkeypatch.setenv("DAYPASS_TEST", "1")
    environ: Any = environment()
    assert environ["DAYPASS_TEST"] == "1"
    environ["DAYPASS_TEST"] = "2"
    assert environment()["DAYPASS_TEST"] == "1"
