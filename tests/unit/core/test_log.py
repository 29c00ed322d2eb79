"""Log lines: JSON, one a line, without secrets."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from daypass_core.log import configure, event, failed, get_logger, request_id
from daypass_core.secret import Secret
from tests.support import access_token, signing_key

log = get_logger("daypass.tests")
TOKEN = access_token(signing_key("log"))


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Log into memory, and put the root logger back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure("proxy", "info", stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return what was logged, decoded."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_event(stream: io.StringIO) -> None:
    """An event is one object with time, level, service, name and its fields."""
    event(log, "call_settled", cost_nano=12, stream=True, model=None)
    (line,) = lines(stream)
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "info",
        "service": "proxy",
        "event": "call_settled",
        "cost_nano": 12,
        "stream": True,
        "model": None,
    }


def test_extra_fields(stream: io.StringIO) -> None:
    """Fields given by the standard library's own way come out the same."""
    log.warning("token_refused", extra={"fields": {"reason": "expired"}})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["reason"]) == ("token_refused", "warning", "expired")


def test_fields_do_not_replace_ours(stream: io.StringIO) -> None:
    """A field cannot pass itself off as the event, the service or the request id."""
    token = request_id.set("req_1")
    log.info("real", extra={"fields": {"event": "fake", "service": "x", "request_id": "req_2"}})
    request_id.reset(token)
    (line,) = lines(stream)
    assert (line["event"], line["service"], line["request_id"]) == ("real", "proxy", "req_1")


def test_request_id(stream: io.StringIO) -> None:
    """The id of the request being served is in each of its lines, and in no other."""
    token = request_id.set("req_1")
    event(log, "inside")
    request_id.reset(token)
    event(log, "outside")
    assert [line.get("request_id") for line in lines(stream)] == ["req_1", None]


def test_level(stream: io.StringIO) -> None:
    """Lines below the level are not written, levels can be given per event."""
    event(log, "detail", level=logging.DEBUG)
    event(log, "trouble", level=logging.ERROR)
    assert [line["level"] for line in lines(stream)] == ["error"]


def test_control_characters(stream: io.StringIO) -> None:
    """Line breaks, escape sequences and odd Unicode cannot forge or colour a line (row 45)."""
    path = "/v1\r\n{}\x1b[31m\x7f\x9b\u2028\u202e"
    event(log, "call_refused", path=path)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.isascii()
    assert all(character >= " " and character != "\x7f" for character in text[:-1])
    assert json.loads(text)["path"] == path


@pytest.mark.parametrize(
    "value",
    [
        Secret("hunter2-hunter2"),
        [Secret("hunter2-hunter2")],
        {"key": Secret("hunter2-hunter2")},
        ValueError(Secret("hunter2-hunter2")),
    ],
)
def test_secrets(stream: io.StringIO, value: object) -> None:
    """A secret in a field, at any depth, prints as stars (row 41)."""
    event(log, "key_read", value=value)
    assert "***" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        f"Bearer {TOKEN}",
        f"{TOKEN.rpartition('.')[0]}",
        "sk-ant-api03-abcdefghijklmnop",
        "dpa_crd123_abcdefghijklmnop",
        "dpo_crd123_abcdefghijklmnop",
        "hvs.CAESIabcdefghijklmnop",
    ],
)
def test_tokens_are_blotted_out(stream: io.StringIO, text: str) -> None:
    """What looks like a token or key is blotted out, in fields, messages and tracebacks."""
    secret_part = text.rpartition("Bearer ")[2][10:]
    event(log, "careless", header=text)
    logging.getLogger("somelib").error("got %s", text)
    try:
        raise ValueError(text)
    except ValueError as error:
        event(log, "careless", exc_info=error)
    assert len(lines(stream)) == 3
    assert secret_part not in stream.getvalue()


def test_ids_are_not_blotted_out(stream: io.StringIO) -> None:
    """The ids we log instead of tokens stay readable."""
    event(log, "call_settled", jti="tok_aaaaaaaaaaaaaaaaaaaaaaaaaa", task="task-abcdefghijklmnop")
    assert "tok_aaaaaaaaaaaaaaaaaaaaaaaaaa" in stream.getvalue()
    assert "task-abcdefghijklmnop" in stream.getvalue()


def test_exception(stream: io.StringIO) -> None:
    """The traceback of a logged exception is in the line."""
    try:
        raise KeyError("lost")
    except KeyError:
        event(log, "unexpected", level=logging.ERROR, exc_info=True)
    (line,) = lines(stream)
    assert "KeyError: 'lost'" in line["exception"]


def test_library_loggers(stream: io.StringIO) -> None:
    """Libraries speak JSON too, their chatter stays out, uvicorn has no handler of its own."""
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler(sys.stderr))
    configure("proxy", "debug", stream)
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").error("boom %d", 7)
    logging.getLogger("urllib3.connectionpool").debug("GET /v1/secret")
    (line,) = lines(stream)
    assert line["event"] == "library_message"
    assert (line["logger"], line["message"]) == ("uvicorn.error", "boom 7")


def test_an_unexpected_error_is_named_without_its_text(stream: io.StringIO) -> None:
    """`failed` logs kind and place of an exception, and nothing that could be part of a request."""
    try:
        raise ValueError("canary-text")
    except ValueError as error:
        failed(log, "request_failed", error)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["kind"]) == ("request_failed", "error", "ValueError")
    assert line["where"].startswith("test_log.py:")
    assert "canary" not in stream.getvalue()


def test_an_error_that_was_never_raised_has_no_place(stream: io.StringIO) -> None:
    """Without a traceback there is no place to name."""
    failed(log, "request_failed", KeyError("x"))
    assert lines(stream)[0]["where"] == ""
