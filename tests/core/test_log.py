"""What never reaches a log, and what must."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from fairslice import log
from fairslice.settings import LogFormat, LogLevel


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure(LogLevel.INFO, LogFormat.JSON, stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("status on http://127.0.0.1:8080", "status on http://127.0.0.1:8080"),
        ("redis://user:pa:ss@host:6379/0 is away", "redis://user:***@host:6379/0 is away"),
        ("redis://:pw@host", "redis://:***@host"),
        ("sent Authorization: Bearer abc.def", "sent Authorization: Bearer ***"),
    ],
)
def test_secrets_are_masked_and_addresses_are_not(
    written: io.StringIO, text: str, shown: str
) -> None:
    logging.getLogger("test").info(text)
    assert json.loads(written.getvalue())["message"] == shown
