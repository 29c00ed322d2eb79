"""Logging: one JSON object a line, a static event name and data in fields.

`event(log, "call_settled", cost_nano=…)` is how the services speak. Library loggers (uvicorn,
aiohttp, hvac) come out in the same form. Secrets print as `***` by their type; as a second net,
whatever still looks like a token or key is blotted out of the finished line.
"""

import json
import logging
import os
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request being served; set at the edge, carried into every line."""

LEVELS = ("debug", "info", "warning", "error")
_QUIET = ("aiohttp", "asyncio", "httpx", "hvac", "requests", "urllib3", "sqlalchemy", "alembic")
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
# JWTs, provider keys, our admin credentials, Vault tokens. The first characters stay, so that
# a reader sees what kind of thing was there.
_SECRET_LIKE = re.compile(
    r"(eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*"
    r"|\b(sk-ant-|sk-|dp[ao]_|hvs\.|AIza)[A-Za-z0-9_.-]{12,}"
)


def configure(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging of this process as JSON lines to `stream` (standard error by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
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
        text = json.dumps(line, default=str, ensure_ascii=True, separators=(",", ":"))
        return _SECRET_LIKE.sub(_blot, text).replace("\x7f", "\\u007f")


def _blot(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}***"
