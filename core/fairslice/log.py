"""Structured logging: one JSON object a line for machines, plain lines on a terminal.

Fields go in `extra`: `log.info("released", extra={"workload": str(ref), "milli": 250})`.
"""

import logging
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from fairslice.settings import LogFormat, LogLevel

__all__ = ["configure"]

# Attributes that every record has; whatever else is there came in through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET = re.compile(
    r"(?P<scheme>\b(?:Bearer|Basic)\s+)[^\s\"']+|(?P<user>://[^/\s:@]*:)[^\s/\"']+(?=@)",
    re.IGNORECASE,
)
_SECRET_FIELDS = ("token", "password", "secret", "authorization", "private_key")


def configure(level: LogLevel, form: LogFormat, stream: TextIO | None = None) -> None:
    """Send all logging to one stream, standard error by default."""
    stream = sys.stderr if stream is None else stream
    plain = form is LogFormat.PLAIN or (form is LogFormat.AUTO and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter() if plain else JsonFormatter())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
    # Per-request chatter of libraries is of use to nobody here.
    for name in ("aiohttp.access", "asyncio", "kubernetes_asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _redact(text: str) -> str:
    return _SECRET.sub(lambda found: (found["scheme"] or found["user"]) + "***", text)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return {
        key: "***" if any(word in key.lower() for word in _SECRET_FIELDS) else value
        for key, value in vars(record).items()
        if key not in _STANDARD
    }


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as JSON."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _redact(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            entry["error"] = _redact(self.formatException(record.exc_info))
        return msgspec.json.encode(entry, enc_hook=str).decode()


class PlainFormatter(logging.Formatter):
    """A line for people: time, level if it matters, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as a line."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{clock} {level}{record.getMessage()}"
        line += "".join(f" {key}={value}" for key, value in _fields(record).items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return _redact(line)
