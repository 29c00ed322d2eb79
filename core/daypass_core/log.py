"""Logging: one JSON object a line, a static event name and data in fields.

`event(log, "call_settled", cost_nano=…)` is how the services speak, and `tell(log, Line(…))` for
the one line that every request ends in, which is made without a log record. Library loggers
(uvicorn, hvac) come out in the same form. Secrets print as `***` by their type; as a
second net, whatever still looks like a token or key is blotted out of the finished line. All lines
of a process go through one `lines.LineWriter`: they keep their order, and nobody waits for them.
"""

import atexit
import json
import logging
import os
import re
import select
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from operator import attrgetter
from typing import ClassVar, TextIO, get_args

import msgspec

from daypass_core.lines import LineWriter

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request being served; set at the edge, carried into every line."""

LEVELS = ("debug", "info", "warning", "error")
_QUIET = ("asyncio", "httpx", "hvac", "requests", "urllib3", "sqlalchemy", "alembic")
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
# JWTs, provider keys, our admin credentials, Vault tokens. The first characters stay, so that
# a reader sees what kind of thing was there.
_SECRET_LIKE = re.compile(
    r"(eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*"
    r"|\b(sk-ant-|sk-|dp[ao]_|hvs\.|AIza)[A-Za-z0-9_.-]{12,}"
)
# `_has_sign` looks for what every match begins with, in a tenth of the time.
_ROOT = logging.getLogger()


class Line(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True, tag_field="event"):
    """The closing line of a request; a subclass names its event by `tag`, and its fields.

    A field with a default is left out while it has that.
    """

    OURS: ClassVar[frozenset[str]] = frozenset({"request_id"})
    """Fields whose text we made, or checked before we signed it: no token can be in them. All
    others that are not numbers are looked through for what looks like a secret."""

    request_id: str


def configure(
    service: str, level: str = "info", stream: TextIO | None = None, *, thread: bool = True
) -> None:
    """Send all logging of this process as JSON lines to `stream` (standard error by default).

    Without a `thread`, as for a process that forks, a line that finds no room at once is dropped.
    """
    handler = _handler(service, stream, thread)
    for old in _ROOT.handlers:
        old.close()  # what it still holds comes before what follows
    _ROOT.handlers[:] = [handler]
    _ROOT.setLevel(level.upper())
    for name in _UVICORN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        # uvicorn tells its life in info lines; server.py says the same as events of ours.
        logger.setLevel(logging.WARNING)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    # A full disk must not add traces of its own, which would also pass by the formatter's blotting.
    logging.raiseExceptions = False


def _handler(service: str, stream: TextIO | None, thread: bool) -> logging.Handler:
    """Return the way out: a writer for the process's own standard error, else the stream itself."""
    handler: logging.Handler
    if stream is None and sys.stderr is sys.__stderr__ and sys.stderr is not None:
        into = sys.stderr.fileno()
        handler = LineHandler(service, into) if thread else DirectHandler(service, into)
    else:
        handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(JsonFormatter(service))
    return handler


def flush() -> None:
    """Write out what waits, before words of another kind go to the same place."""
    for handler in _ROOT.handlers:
        handler.flush()


def dropped_lines() -> int:
    """Return how many lines of this process were lost."""
    return sum(one.writer.dropped for one in _ROOT.handlers if isinstance(one, LineHandler))


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; call with `__name__`."""
    return logging.getLogger(name)


def event(
    logger: logging.Logger,
    name: str,
    /,
    *,
    level: int = logging.INFO,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """Log one event: `name` is static snake_case, everything that varies goes into `fields`."""
    if logger.isEnabledFor(level):
        logger.log(level, name, exc_info=exc_info, extra={"fields": fields}, stacklevel=2)


def tell(logger: logging.Logger, line: Line, /) -> None:
    """Log a closing line, at level info: as `event` would, in a twentieth of the time."""
    if not logger.isEnabledFor(logging.INFO):
        return
    handlers = _ROOT.handlers
    if len(handlers) == 1 and isinstance(handlers[0], LineHandler):
        handlers[0].tell(line)
        return
    # Somebody else listens too, and for that a record is needed.
    fields = msgspec.to_builtins(line, enc_hook=_plain)
    logger.info(fields.pop("event"), extra={"fields": fields}, stacklevel=2)


def failed(logger: logging.Logger, name: str, error: BaseException, /) -> None:
    """Log an error that nobody expected: its kind and where it came from, and no more.

    The text of a foreign exception, and the lines of its traceback, may hold parts of a request.
    """
    event(logger, name, level=logging.ERROR, kind=type(error).__name__, where=_where(error))


def _where(error: BaseException) -> str:
    """Return file and line of the innermost frame: a place, never a value."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}"


class JsonFormatter(logging.Formatter):
    """Renders every record, ours or a library's, as one line of ASCII JSON."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. ASCII only, so no control sequence reaches a terminal."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line["event"] = record.msg
        else:
            line["event"] = "library_message"
            fields = {"logger": record.name, "message": record.getMessage()}
        current = request_id.get()
        if current is not None:
            line["request_id"] = current
        for key, value in fields.items():
            line.setdefault(str(key), value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _finish(json.dumps(line, default=_plain, ensure_ascii=True, separators=(",", ":")))


class LineHandler(logging.Handler):
    """Hands every record, and every closing line, to the writer of one descriptor."""

    def __init__(self, service: str, descriptor: int) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(service))
        self.writer = LineWriter(descriptor, tell_dropped=self._dropped_line)
        self._after_time = f'+00:00","level":"info","service":{json.dumps(service)},'.encode()
        self._second = (0, b"")
        self._others: dict[type[Line], Callable[[Line], object]] = {}
        atexit.register(self.writer.close)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; warnings and errors are written at once."""
        line = self.format(record).encode("ascii") + b"\n"
        self.writer.write(line, soon=record.levelno >= logging.WARNING)

    def tell(self, line: Line) -> None:
        """Take a closing line."""
        body = _ENCODER.encode(line)
        others = self._others.get(type(line)) or self._learn(type(line))
        if not body.isascii() or b"\x7f" in body or _has_sign(str(others(line))):
            # Rare, and then the careful way: escapes for what is not ASCII, and the net.
            text = json.dumps(json.loads(body), ensure_ascii=True, separators=(",", ":"))
            body = _finish(text).encode("ascii")
        now = time.time()
        whole = int(now)
        second, prefix = self._second
        if whole != second:
            moment = datetime.fromtimestamp(whole, UTC)
            prefix = moment.strftime('{"ts":"%Y-%m-%dT%H:%M:%S.').encode()
            self._second = (whole, prefix)
        milliseconds = b"%03d" % ((now - whole) * 1000)
        self.writer.write(b"".join((prefix, milliseconds, self._after_time, body[1:], b"\n")))

    def _learn(self, kind: type[Line]) -> Callable[[Line], object]:
        """Return what gives the fields of such a line that may hold foreign text."""
        fields = msgspec.structs.fields(kind)
        names = [one.name for one in fields if one.name not in kind.OURS and _is_text(one.type)]
        found = self._others[kind] = attrgetter(*names) if names else lambda _line: ""
        return found

    def flush(self) -> None:
        """Wait, within a bound, until everything taken so far is written."""
        self.writer.flush()

    def close(self) -> None:
        """Write what waits and let go of the thread."""
        super().close()
        self.writer.close()
        atexit.unregister(self.writer.close)

    def _dropped_line(self, count: int) -> bytes:
        return _dropped_line(self, count)


class DirectHandler(logging.Handler):
    """Writes each line itself, and only where it need not wait: nobody has a thread for it."""

    def __init__(self, service: str, descriptor: int) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(service))
        self._descriptor = descriptor
        self._untold = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a pipe that has room at all has it for 4 KiB (PIPE_BUF)."""
        line = self.format(record).encode("ascii") + b"\n"
        if self._untold:
            line = _dropped_line(self, self._untold) + line
        try:
            if self._poll.poll(0):
                os.write(self._descriptor, line)
                self._untold = 0
                return
        except OSError:  # nobody reads it, or ever will
            pass
        self._untold += 1


def _dropped_line(handler: logging.Handler, count: int) -> bytes:
    """Return the line that says how many are missing before it."""
    record = logging.makeLogRecord({"msg": "log_lines_dropped", "fields": {"count": count}})
    record.levelname = "WARNING"
    return handler.format(record).encode("ascii") + b"\n"


def _plain(value: object) -> object:
    """Return a record as its fields, anything else as its text: a Secret as stars."""
    fields = getattr(type(value), "__dataclass_fields__", None)
    return str(value) if fields is None else {name: getattr(value, name) for name in fields}


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def _is_text(kind: object) -> bool:
    """Say whether a value of this type may be more than a number."""
    return not set(get_args(kind) or (kind,)) <= {int, float, bool, type(None)}


def _has_sign(text: str) -> bool:
    # Written out: a loop over the six takes three times as long.
    return (
        "eyJ" in text or "sk-" in text or "dpa_" in text
        or "dpo_" in text or "hvs." in text or "AIza" in text
    )  # fmt: skip


def _finish(text: str) -> str:
    """Blot out what looks like a secret, and escape the one control character that JSON allows."""
    if _has_sign(text):
        text = _SECRET_LIKE.sub(_blot, text)
    return text.replace("\x7f", "\\u007f")


def _blot(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}***"
