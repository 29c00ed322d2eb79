"""Log lines: JSON, one a line, without secrets."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from daypass_core.log import (
    DirectHandler,
    Line,
    LineHandler,
    configure,
    dropped_lines,
    event,
    failed,
    flush,
    get_logger,
    request_id,
    tell,
)
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


# -- closing lines


class Closed(Line, tag="call_closed", kw_only=True):
    """A closing line."""

    OURS: ClassVar[frozenset[str]] = Line.OURS | {"tenant"}

    model: str
    tenant: str = ""
    cost: int | None = None
    more: object = None


class File:
    """The one handler of the root logger, writing to a file as it would to standard error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.handler = LineHandler("proxy", self.descriptor)

    def tell(self, line: Line) -> None:
        """Tell a line by the direct way, which is taken while nobody else listens."""
        logging.getLogger().handlers[:] = [self.handler]
        tell(log, line)

    @property
    def text(self) -> str:
        """Everything that was logged, once it is written."""
        flush()
        return self.path.read_text("ascii")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The same, decoded."""
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    """Log into a file, and put the root logger back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    file = File(tmp_path / "log")
    root.handlers[:] = [file.handler]
    root.setLevel(logging.INFO)
    yield file
    root.handlers[:] = handlers
    root.setLevel(level)
    file.handler.close()
    os.close(file.descriptor)


def test_a_closing_line_is_as_an_event(file: File, stream: io.StringIO) -> None:
    """`tell` writes the line that `event` would have, field by field and in the same form."""
    line = Closed(request_id="req_1", model="claude", cost=0, more={"a": None})
    tell(log, line)  # a handler of another kind: by way of a record
    logging.getLogger().handlers[:] = [file.handler]
    tell(log, line)
    (by_record,) = lines(stream)
    (direct,) = file.lines
    first, second = (datetime.fromisoformat(one.pop("ts")) for one in (by_record, direct))
    assert abs(first - second) < timedelta(hours=1)
    assert direct == by_record == {
        "level": "info", "service": "proxy", "event": "call_closed", "request_id": "req_1",
        "model": "claude", "cost": 0, "more": {"a": None},
    }  # fmt: skip
    assert list(direct)[:3] == ["level", "service", "event"]


def test_closing_lines_and_events_keep_their_order(file: File) -> None:
    """Whatever the way a line takes, it stands behind the one said before it."""
    for number in range(50):
        file.tell(Closed(request_id=f"req_{number}", model="m"))
        event(log, "between", level=(logging.INFO, logging.ERROR)[number % 2], number=number)
    found = [line.get("request_id") or f"req_{line['number']}" for line in file.lines]
    assert found == [f"req_{number}" for number in range(50) for _ in range(2)]
    assert dropped_lines() == 0


def test_the_time_of_a_closing_line(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment is told in UTC to the millisecond, also when the second changes."""
    for moment in (1_800_000_000.0, 1_800_000_000.0129, 1_800_000_001.999):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        file.tell(Closed(request_id="req_1", model="m"))
    assert [line["ts"] for line in file.lines] == [
        "2027-01-15T08:00:00.000+00:00",
        "2027-01-15T08:00:00.012+00:00",
        "2027-01-15T08:00:01.999+00:00",
    ]


@pytest.mark.parametrize("where", ["model", "more"])
@pytest.mark.parametrize("text", [TOKEN, "sk-ant-api03-abcdefghijklmnop", "dpo_x_abcdefghijklmnop"])
def test_closing_lines_are_blotted(file: File, where: str, text: str) -> None:
    """Foreign text in a closing line, plain or nested, is looked through as everywhere."""
    value: Any = {"deep": [text]} if where == "more" else text
    file.tell(Closed(**{"request_id": "req_1", "model": "m", where: value}))
    assert text[10:] not in file.text
    assert "***" in file.text


def test_a_secret_in_a_closing_line(file: File) -> None:
    """A secret prints as stars here too."""
    file.tell(Closed(request_id="req_1", model="m", more=[Secret("hunter2-hunter2")]))
    assert file.lines[0]["more"] == ["***"]


@pytest.mark.parametrize("model", ["m\r\n{}\x1b[31m", "m\x7f", "m\x9b\u2028\u202e", "m\x7f\u202e"])
def test_closing_lines_are_ascii(file: File, model: str) -> None:
    """Control characters and odd Unicode cannot forge or colour a closing line (row 45)."""
    file.tell(Closed(request_id="req_1", model=model))
    assert all(" " <= character != "\x7f" for character in file.text[:-1])
    assert file.lines[0]["model"] == model


def test_level_of_closing_lines(file: File) -> None:
    """A service that logs warnings only writes no closing lines."""
    logging.getLogger().setLevel(logging.WARNING)
    file.tell(Closed(request_id="req_1", model="m"))
    assert file.text == ""


def test_without_a_thread_a_line_that_finds_no_room_is_dropped() -> None:
    """A process that forks is held up by nobody's full pipe; what is missing is told."""
    out, into = os.pipe()
    handler = DirectHandler("proxy", into)
    record = logging.makeLogRecord({"msg": "worker_ended", "fields": {"reason": "x" * 900}})
    for _ in range(1_000):
        handler.handle(record)
    found = b""
    while found.count(b"worker_ended") < 50:
        found += os.read(out, 65536)
    handler.handle(record)
    told = [json.loads(line) for line in os.read(out, 65536).splitlines()]
    assert told[-2]["event"] == "log_lines_dropped"
    assert found.count(b"worker_ended") + told[-2]["count"] + len(told) - 1 == 1_001
    os.close(out)
    handler.handle(record)
    os.close(into)


def test_standard_error_of_a_process_is_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service writes through the buffer, and what the last configuration holds comes first."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out, into = os.pipe()
    with os.fdopen(into, "w") as mine, os.fdopen(out) as theirs:
        monkeypatch.setattr(sys, "stderr", mine)
        monkeypatch.setattr(sys, "__stderr__", mine)
        configure("proxy")
        event(log, "first")
        configure("broker")
        event(log, "second")
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        mine.close()
        found = [json.loads(line) for line in theirs]
    assert [(line["service"], line["event"]) for line in found] == [
        ("proxy", "first"), ("broker", "second"),
    ]  # fmt: skip
