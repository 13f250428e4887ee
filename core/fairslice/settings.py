"""Settings of the services: from FAIRSLICE_* variables, overridden by command-line options."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from fairslice.redis_setting import RedisSetting, RedisSettingError
from fairslice.v1alpha1.scalars import Mode

__all__ = [
    "Address",
    "HideBy",
    "LogFormat",
    "LogLevel",
    "Settings",
    "SettingsError",
    "hide_password",
]

PREFIX = "FAIRSLICE_"


class SettingsError(ValueError):
    """A setting that can't be used: its name, its value, what was expected."""


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look; `auto` is plain on a terminal, JSON elsewhere."""

    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"


class HideBy(StrEnum):
    """Who hides GPUs from pods without: `auto` is the API server where it can, else the webhook."""

    AUTO = "auto"
    WEBHOOK = "webhook"


class Address(NamedTuple):
    """Where a server listens. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_LISTEN = Address("0.0.0.0", 9443)
_STATUS_LISTEN = Address("127.0.0.1", 8080)
_HEALTH_LISTEN = Address("127.0.0.1", 8081)
_DATA_DIR = Path(".fairslice")
_MOST_WORKERS = 64


def hide_password(url: str) -> str:
    """Return the URL with its password starred out, for logs and messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a service is told from outside.

    `kubeconfig` None means in-cluster if there is a cluster around, else kubectl's own default.
    `redis_url` None means an embedded server under `data_dir`. `advertise` is the base URL that
    the API server is told; None registers the in-cluster Service instead. `hide_by` keeps API
    servers that could (Kubernetes 1.36 and newer) from hiding GPUs by themselves. `workers` is how
    many processes answer reviews, 0 leaves that to the webhook. `mode` sets every
    feature of the policy at install (`--mode enforce` for a trial); None leaves the policy as
    it is.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = "fairslice-system"
    redis_url: str | None = field(default=None, repr=False)
    listen: Address = _LISTEN
    advertise: str | None = None
    status_listen: Address = _STATUS_LISTEN
    health_listen: Address = _HEALTH_LISTEN
    data_dir: Path = _DATA_DIR
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.AUTO
    mode: Mode | None = None
    hide_by: HideBy = HideBy.AUTO
    workers: int = 0

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str] | None = None,
        options: Mapping[str, str | None] | None = None,
    ) -> "Settings":
        """Read settings from the environment and from command-line options, which win.

        Raises SettingsError, naming the variable or option.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for item in fields(cls):
            variable = PREFIX + item.name.upper()
            text, source = environ.get(variable), variable
            option = (options or {}).get(item.name)
            if option is not None:
                text, source = option, "--" + item.name.replace("_", "-")
            if not text:
                continue
            try:
                values[item.name] = _PARSERS[item.name](text)
            except RedisSettingError as error:
                raise SettingsError(f"{source}: {error}") from None  # The text may hold a password.
            except ValueError as error:
                raise SettingsError(f"{source}: {text!r} {error}") from None
        return cls(**values)


def _text(text: str) -> str:
    return text


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("is not host:port, such as 127.0.0.1:9443")
    return Address(host or "0.0.0.0", int(port))


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("is not a base URL such as https://10.0.0.5:9443 (API servers want https)")
    return text.rstrip("/")


def _redis_url(text: str) -> str:
    RedisSetting.parse(text)  # Only to see that it can be.
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_WORKERS:
        raise ValueError(f"is not a number from 1 to {_MOST_WORKERS}")
    return int(text)


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        for member in kind:
            if member.value.lower() == text.lower():
                return member
        raise ValueError("is not one of " + ", ".join(member.value.lower() for member in kind))

    return parse


_PARSERS: dict[str, Callable[[str], object]] = {
    "kubeconfig": _text,
    "context": _text,
    "namespace": _text,
    "redis_url": _redis_url,
    "listen": _address,
    "advertise": _base_url,
    "status_listen": _address,
    "health_listen": _address,
    "data_dir": Path,
    "log_level": _one_of(LogLevel),
    "log_format": _one_of(LogFormat),
    "mode": _one_of(Mode),
    "hide_by": _one_of(HideBy),
    "workers": _count,
}
