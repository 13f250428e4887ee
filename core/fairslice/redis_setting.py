"""The one setting that says where Redis is, read into client arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from redis.asyncio.connection import SSLConnection, parse_url

__all__ = ["RedisSetting", "RedisSettingError", "Topology"]

Topology = Literal["single", "sentinel", "cluster"]

_FORMS = (
    "redis://HOST:PORT/DB, rediss://…, unix:///PATH, "
    "redis+sentinel://HOST:26379,HOST:26379/SERVICE/DB or redis+cluster://HOST:PORT,HOST:PORT"
)
_SENTINEL_PORT = 26379
_REDIS_PORT = 6379


class RedisSettingError(ValueError):
    """The Redis setting can't be used: what is wrong with it (never the password), the forms."""


@dataclass(frozen=True, slots=True)
class RedisSetting:
    """Where Redis is. `options` are redis-py connection arguments, the secrets among them."""

    topology: Topology
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> "RedisSetting":
        """Read a setting.

        `redis+sentinel` and `redis+cluster` (with TLS: `rediss+…`) take several hosts; all
        forms take redis-py's query arguments (`?ssl_ca_certs=/path`), Sentinel's own login as
        `sentinel_username` and `sentinel_password`. Raises RedisSettingError.
        """
        scheme, separator, rest = text.partition("://")
        base, _, form = scheme.partition("+")
        if not separator or base not in ("redis", "rediss", "unix"):
            raise RedisSettingError(f"Redis setting has no known scheme: use {_FORMS}")
        if form == "":
            return cls._parse_single(text)
        if form not in ("sentinel", "cluster") or base == "unix":
            raise RedisSettingError(f"Redis setting has no known scheme: use {_FORMS}")
        return cls._parse_many(base, "sentinel" if form == "sentinel" else "cluster", rest)

    @classmethod
    def _parse_single(cls, text: str) -> "RedisSetting":
        try:
            options: dict[str, Any] = dict(parse_url(text))
        except ValueError as error:
            raise RedisSettingError(f"Redis setting can't be read: use {_FORMS}") from error
        if text.startswith("unix://") and not options.get("path"):
            raise RedisSettingError(f"Redis setting names no socket path: use {_FORMS}")
        return cls("single", options=options)

    @classmethod
    def _parse_many(cls, base: str, form: Topology, rest: str) -> "RedisSetting":
        address, _, query = rest.partition("?")
        authority, _, path = address.partition("/")
        login, at, hosts_text = authority.rpartition("@")
        port = _SENTINEL_PORT if form == "sentinel" else _REDIS_PORT
        try:
            hosts = tuple(_host(item, port) for item in hosts_text.split(","))
            service, _, database = unquote(path).partition("/")
            if form == "cluster":
                service, database = "", service
            url = f"{base}://{login}{at}host/{database or 0}" + (f"?{query}" if query else "")
            options: dict[str, Any] = dict(parse_url(url))
        except ValueError as error:
            raise RedisSettingError(f"Redis setting can't be read: use {_FORMS}") from error
        options.pop("host")
        tls = options.pop("connection_class", None) is SSLConnection
        sentinel_options = {
            name.removeprefix("sentinel_"): options.pop(name)
            for name in ("sentinel_username", "sentinel_password")
            if name in options
        }
        if form == "sentinel" and not service:
            raise RedisSettingError(f"Redis setting names no Sentinel service: use {_FORMS}")
        if form == "cluster" and options.pop("db", 0):
            raise RedisSettingError("Redis setting names a database: a cluster has only 0")
        return cls(form, hosts, service, tls, options, sentinel_options)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, parts.port or port
