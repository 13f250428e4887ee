"""Secret, webhook configurations and replicas as the API server knows them."""

from base64 import b64encode
from collections.abc import Sequence

import msgspec

from fairslice.kube.client import JSON_PATCH, MERGE_PATCH, KubeClient
from fairslice.kube.ensure import MANAGED_BY
from fairslice.kube.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from fairslice.webhook_configuration import NAME

from .inject import (
    ConfigurationKind,
    ConfigurationRef,
    PatchOperation,
    WebhookConfiguration,
    decode_configuration,
)
from .secret import (
    NEXT_CONFIRMED,
    NEXT_CRT,
    NEXT_KEY,
    AlreadyExistsError,
    ConflictError,
    SecretData,
    StoredSecret,
    UnavailableError,
)

__all__ = [
    "CONFIGURATIONS",
    "SECRET_NAME",
    "ClusterConfigurations",
    "ClusterSecret",
    "ServiceEndpoints",
]

SECRET_NAME = "fairslice-webhook-certificate"
CONFIGURATIONS = (
    ConfigurationRef(ConfigurationKind.MUTATING, NAME),
    ConfigurationRef(ConfigurationKind.VALIDATING, NAME),
)
"""The webhook configurations that fairslice registers."""


class ClusterSecret:
    """A `SecretStore` in the cluster. Labels, annotations and type of the Secret are kept."""

    def __init__(self, client: KubeClient, namespace: str, name: str = SECRET_NAME) -> None:
        self._client = client
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._name = name

    async def get(self) -> StoredSecret | None:
        """Read the Secret; None when there is none."""
        try:
            raw = await self._client.get(f"{self._collection}/{self._name}")
        except NotFound:
            return None
        except ApiError as error:
            raise UnavailableError(f"Secret {self._name}: {error}") from error
        found = msgspec.json.decode(raw, type=_Secret)
        return StoredSecret(found.data or {}, found.metadata.resource_version)

    async def create(self, data: SecretData) -> None:
        """Create the Secret, or raise `AlreadyExistsError`."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            # Not kubernetes.io/tls: while it is repaired it may hold no serving certificate.
            "type": "Opaque",
            "metadata": {"name": self._name, "labels": MANAGED_BY},
            "data": _encoded(data),
        }
        try:
            await self._client.create(self._collection, body)
        except (AlreadyExists, Conflict) as error:
            raise AlreadyExistsError(str(error)) from error
        except ApiError as error:
            raise UnavailableError(f"Secret {self._name}: {error}") from error

    async def replace(self, data: SecretData, version: str) -> None:
        """Put this data in place of the version named, or raise `ConflictError`."""
        gone = dict.fromkeys({NEXT_CRT, NEXT_KEY, NEXT_CONFIRMED} - data.keys())
        body = {"metadata": {"resourceVersion": version}, "data": _encoded(data) | gone}
        try:
            await self._client.patch(f"{self._collection}/{self._name}", body, MERGE_PATCH)
        except (Conflict, NotFound) as error:
            raise ConflictError(str(error)) from error
        except ApiError as error:
            raise UnavailableError(f"Secret {self._name}: {error}") from error


class ClusterConfigurations:
    """The cluster's webhook configurations."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def get(self, ref: ConfigurationRef) -> WebhookConfiguration | None:
        """Read one; None when there is none."""
        try:
            return decode_configuration(ref, await self._client.get(_path(ref)))
        except NotFound:
            return None
        except ApiError as error:
            raise UnavailableError(f"{ref.kind} {ref.name}: {error}") from error

    async def patch(self, ref: ConfigurationRef, patch: Sequence[PatchOperation]) -> None:
        """Apply a JSON patch, or raise `ConflictError`; a failed test operation is a 422."""
        try:
            await self._client.patch(_path(ref), list(patch), JSON_PATCH)
        except (Conflict, Invalid, NotFound) as error:
            raise ConflictError(str(error)) from error
        except ApiError as error:
            raise UnavailableError(f"{ref.kind} {ref.name}: {error}") from error


class ServiceEndpoints:
    """The addresses behind a Service, ready or not; what `ProbedReplicas` wants."""

    def __init__(self, client: KubeClient, namespace: str, service: str, port: int) -> None:
        self._client = client
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._service = service
        self._port = port

    async def __call__(self) -> list[tuple[str, int]]:
        """Return host and port of every pod behind the Service."""
        chosen = {"labelSelector": f"kubernetes.io/service-name={self._service}"}
        try:
            raw = await self._client.get(self._path, chosen)
        except ApiError as error:
            raise UnavailableError(f"endpoints of {self._service}: {error}") from error
        slices = msgspec.json.decode(raw, type=_SliceList).items or []
        endpoints = [endpoint for each in slices for endpoint in each.endpoints or []]
        return sorted({(each.addresses[0], self._port) for each in endpoints if each.addresses})


def _path(ref: ConfigurationRef) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{ref.kind}/{ref.name}"


def _encoded(data: SecretData) -> dict[str, str | None]:
    return {key: b64encode(value).decode() for key, value in data.items()}


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Secret(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, bytes] | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str] = []


class _Slice(msgspec.Struct):
    endpoints: list[_Endpoint] | None = None


class _SliceList(msgspec.Struct):
    items: list[_Slice] | None = None
