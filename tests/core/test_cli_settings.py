"""Settings and logging: one place to read them, no secret in what is shown."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairslice import log
from fairslice.settings import (
    Address,
    HideBy,
    LogFormat,
    LogLevel,
    Settings,
    SettingsError,
    hide_password,
)
from fairslice.v1alpha1.scalars import Mode


def test_options_win_over_variables_and_those_over_defaults() -> None:
    environ = {"FAIRSLICE_LISTEN": "127.0.0.1:1", "FAIRSLICE_MODE": "enforce"}
    settings = Settings.load(environ, {"listen": "[::1]:2", "kubeconfig": None})
    assert settings.listen == Address("::1", 2)
    assert str(settings.listen) == "[::1]:2"
    assert settings.mode is Mode.ENFORCE
    assert settings.kubeconfig is None
    assert settings.data_dir == Path(".fairslice")


@pytest.mark.parametrize("text", ["9443", "x:y", "x:70000", "x:-1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="FAIRSLICE_LISTEN"):
        Settings.load({"FAIRSLICE_LISTEN": text})


def test_workers_are_a_number_of_processes() -> None:
    assert Settings.load({}).workers == 0
    assert Settings.load({"FAIRSLICE_WORKERS": "4"}).workers == 4
    for text in ("0", "-1", "two", "65"):
        with pytest.raises(
            SettingsError, match=f"--workers: '{text}' is not a number from 1 to 64"
        ):
            Settings.load({}, {"workers": text})


def test_who_hides_is_one_of_two() -> None:
    assert Settings.load({}).hide_by is HideBy.AUTO
    assert Settings.load({"FAIRSLICE_HIDE_BY": "webhook"}).hide_by is HideBy.WEBHOOK
    with pytest.raises(SettingsError, match="--hide-by: 'both' is not one of auto, webhook"):
        Settings.load({}, {"hide_by": "both"})


def test_the_redis_password_is_in_no_repr() -> None:
    settings = Settings.load({"FAIRSLICE_REDIS_URL": "redis://user:hunter2@host:6379/0"})
    assert "hunter2" not in repr(settings)
    assert hide_password(settings.redis_url or "") == "redis://user:***@host:6379/0"
    assert hide_password("redis://host:6379") == "redis://host:6379"


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_machines_get_json_and_no_secret(root_logger: None) -> None:
    stream = io.StringIO()
    log.configure(LogLevel.INFO, LogFormat.AUTO, stream)
    logging.getLogger("x").info(
        "sent Authorization: Bearer abc.def", extra={"team": "nlp", "api_token": "abc"}
    )
    logging.getLogger("x").debug("unseen")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["message"] == "sent Authorization: Bearer ***"
    assert (entry["team"], entry["api_token"], entry["level"]) == ("nlp", "***", "info")
    assert entry["time"].endswith("+00:00")


def test_people_get_plain_lines(root_logger: None) -> None:
    stream = io.StringIO()
    log.configure(LogLevel.INFO, LogFormat.PLAIN, stream)
    logging.getLogger("x").warning("no answer from redis://u:pw@h", extra={"milli": 250})
    assert stream.getvalue().endswith("warning: no answer from redis://u:***@h milli=250\n")


def test_an_error_carries_its_traceback_as_a_field(root_logger: None) -> None:
    stream = io.StringIO()
    log.configure(LogLevel.INFO, LogFormat.JSON, stream)
    try:
        raise LookupError("a bug")
    except LookupError:
        logging.getLogger("x").exception("failed")
    assert "LookupError: a bug" in json.loads(stream.getvalue())["error"]
