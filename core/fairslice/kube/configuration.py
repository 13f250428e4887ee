"""Where the API server is and who we are there, as kubernetes_asyncio reads it.

The library understands every kubeconfig in the field (exec plugins, OIDC, token files) and
in-cluster tokens; what it yields is reduced here to three things: a base URL, a TLS context
and a source of the Authorization header.
"""

import asyncio
import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME
from kubernetes_asyncio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, load_kube_config

from fairslice.kube.errors import ApiError

__all__ = ["Credentials", "Endpoint", "KubeconfigError", "is_in_cluster", "load_endpoint"]

_RELOAD_SECONDS = 60.0
_PLUGIN_SECONDS = 30.0


class KubeconfigError(Exception):
    """A kubeconfig that is missing or can't be used: which, why, and what to do."""


class Credentials(Protocol):
    """A source of the Authorization header."""

    async def authorization(self, *, rejected: bool = False) -> str | None:
        """Return the header's value; None where a client certificate says who we are.

        `rejected` says that the last one was answered with 401: get a fresh one if possible.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An API server. `tls_anonymous` is the same trust without our client certificate."""

    url: str
    tls: ssl.SSLContext | None = field(repr=False, default=None)
    tls_anonymous: ssl.SSLContext | None = field(repr=False, default=None)
    credentials: Credentials = field(repr=False)
    server_name: str | None = None
    proxy: str | None = field(repr=False, default=None)

    @property
    def is_loopback(self) -> bool:
        """Say whether the API server is on this machine: proxies never apply then."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


async def load_endpoint(kubeconfig: str | None = None, context: str | None = None) -> Endpoint:
    """Find the API server: the kubeconfig named, else in-cluster, else kubectl's default.

    Raises KubeconfigError, in one line.
    """
    if kubeconfig is None and context is None and is_in_cluster():
        configuration = Configuration()
        try:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise KubeconfigError(f"in-cluster configuration: {error}") from None
        return _endpoint(configuration, _LibraryCredentials(configuration), "in-cluster")
    path = kubeconfig or os.environ.get("KUBECONFIG") or KUBE_CONFIG_DEFAULT_LOCATION
    if not any(map(_is_file, path.split(os.pathsep))):
        raise KubeconfigError(
            f"no kubeconfig at {path}: name one with --kubeconfig or the variable KUBECONFIG"
        )
    credentials = _KubeconfigCredentials(path, context)
    return _endpoint(await credentials.load(), credentials, path)


def _is_file(path: str) -> bool:
    return bool(path) and Path(path).expanduser().is_file()


def is_in_cluster() -> bool:
    """Say whether this process runs in a pod that may talk to its cluster."""
    return SERVICE_HOST_ENV_NAME in os.environ and Path(SERVICE_TOKEN_FILENAME).is_file()


class _LibraryCredentials:
    """In-cluster: the library re-reads the mounted token every minute."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def authorization(self, *, rejected: bool = False) -> str | None:
        """Return the header."""
        header = await self._configuration.get_api_key_with_prefix("BearerToken")
        return None if header is None else str(header)


class _KubeconfigCredentials:
    """A kubeconfig, read again each minute or on refusal: plugins and token files renew."""

    def __init__(self, path: str, context: str | None) -> None:
        self._path = path
        self._context = context
        self._header: str | None = None
        self._loaded = 0.0
        self._lock = asyncio.Lock()

    async def load(self) -> Configuration:
        """Read the kubeconfig.

        Raises KubeconfigError.
        """
        configuration = Configuration()
        try:
            async with asyncio.timeout(_PLUGIN_SECONDS):
                await load_kube_config(
                    config_file=self._path,
                    context=self._context,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except TimeoutError:
            raise KubeconfigError(
                f"kubeconfig {self._path}: no credentials within {_PLUGIN_SECONDS:.0f} s"
            ) from None
        except yaml.YAMLError:
            raise KubeconfigError(f"kubeconfig {self._path}: not YAML") from None
        except (ConfigException, OSError, ValueError) as error:
            raise KubeconfigError(f"kubeconfig {self._path}: {error}") from None
        except (TypeError, AttributeError, AssertionError, KeyError):
            # What the library raises on a file of another shape, or a context without a user.
            raise KubeconfigError(
                f"kubeconfig {self._path}: not a kubeconfig with a current context and its user"
            ) from None
        header = configuration.api_key.get("BearerToken")
        self._header = None if header is None else str(header)
        self._loaded = time.monotonic()
        return configuration

    async def authorization(self, *, rejected: bool = False) -> str | None:
        """Return the header; None for a user with a certificate.

        Raises ApiError where a plugin gives no credentials any more.
        """
        if self._header is None:
            return None
        async with self._lock:
            age = time.monotonic() - self._loaded
            if age > _RELOAD_SECONDS or (rejected and age > 1):
                try:
                    await self.load()
                except KubeconfigError as error:
                    raise ApiError(401, "Unauthorized", str(error)) from None
        return self._header


def _endpoint(configuration: Configuration, credentials: Credentials, source: str) -> Endpoint:
    url = str(configuration.host).rstrip("/")
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise KubeconfigError(f"{source}: {url!r} is not the URL of an API server")
    try:
        tls = None if scheme == "http" else _tls(configuration, certificate=True)
        anonymous = None if scheme == "http" else _tls(configuration, certificate=False)
    except (ssl.SSLError, OSError) as error:
        raise KubeconfigError(f"{source}: a certificate or key is unusable: {error}") from None
    return Endpoint(
        url=url,
        tls=tls,
        tls_anonymous=anonymous,
        credentials=credentials,
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
    )


def _tls(configuration: Configuration, *, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Cluster CAs made by older tools lack the key identifiers that Python 3.13 insists on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate and configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    return context
