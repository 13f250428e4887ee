"""The world around certificates, in memory: API objects with versions, a clock, real TLS."""

import asyncio
import json
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonpatch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fairslice_certs.authority import ServingNames
from fairslice_certs.inject import (
    ConfigurationKind,
    ConfigurationRef,
    PatchOperation,
    WebhookConfiguration,
    decode_configuration,
)
from fairslice_certs.rotation import CertificatePolicy
from fairslice_certs.secret import (
    AlreadyExistsError,
    ConflictError,
    SecretData,
    StoredSecret,
    UnavailableError,
)

NAMES = ServingNames.of_service("fairslice-webhook", "fairslice", extra=["127.0.0.1"])
HOST = "fairslice-webhook.fairslice.svc"
MUTATING = ConfigurationRef(ConfigurationKind.MUTATING, "fairslice")
VALIDATING = ConfigurationRef(ConfigurationKind.VALIDATING, "fairslice")
POLICY = CertificatePolicy(
    NAMES,
    authority_lifetime=timedelta(days=365),
    leaf_lifetime=timedelta(days=30),
    settle=timedelta(seconds=30),
)


@dataclass
class FakeClock:
    """Time that passes when told to, or when somebody sleeps."""

    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    naps: list[float] = field(default_factory=list)
    slept: asyncio.Event = field(default_factory=asyncio.Event)

    def now(self) -> datetime:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.time += timedelta(seconds=seconds)
        self.slept.set()
        await asyncio.sleep(0)

    async def nap_of(self, seconds: float) -> None:
        """Wait until somebody has slept this long."""
        while seconds not in self.naps:
            self.slept.clear()
            await self.slept.wait()


@dataclass
class MemoryStore:
    """A Secret with resourceVersions; `before_write` lets a rival in first."""

    data: dict[str, bytes] | None = field(default=None, repr=False)
    version: int = 0
    writes: int = 0
    before_write: Callable[[], None] | None = None
    down: bool = False

    async def get(self) -> StoredSecret | None:
        if self.down:
            raise UnavailableError("the API server is away")
        return None if self.data is None else StoredSecret(dict(self.data), str(self.version))

    async def create(self, data: SecretData) -> None:
        self._let_rival_in()
        if self.data is not None:
            raise AlreadyExistsError
        self.put(data)

    async def replace(self, data: SecretData, version: str) -> None:
        self._let_rival_in()
        if self.data is None or version != str(self.version):
            raise ConflictError
        self.put(data)

    def put(self, data: SecretData) -> None:
        self.data = dict(data)
        self.version += 1
        self.writes += 1

    def _let_rival_in(self) -> None:
        rival, self.before_write = self.before_write, None
        if rival:
            rival()


class MemoryConfigurations:
    """Webhook configurations as JSON objects, patched as an API server does."""

    def __init__(self) -> None:
        self.objects: dict[ConfigurationRef, dict[str, Any]] = {
            MUTATING: _configuration(["gpu.fairslice.io", "hide.fairslice.io"]),
            VALIDATING: _configuration(["validate.fairslice.io"]),
        }
        self.patches: list[tuple[ConfigurationRef, list[dict[str, str]]]] = []
        self.unwritable: set[ConfigurationRef] = set()

    async def get(self, ref: ConfigurationRef) -> WebhookConfiguration | None:
        found = self.objects.get(ref)
        return found and decode_configuration(ref, json.dumps(found).encode())

    async def patch(self, ref: ConfigurationRef, patch: Sequence[PatchOperation]) -> None:
        if ref in self.unwritable:
            raise UnavailableError(f"{ref.name} can't be written")
        operations = [{"op": each.op, "path": each.path, "value": each.value} for each in patch]
        try:
            after = jsonpatch.apply_patch(self.objects[ref], operations)
        except (jsonpatch.JsonPatchException, KeyError) as error:
            raise ConflictError from error
        after["metadata"]["resourceVersion"] = str(int(after["metadata"]["resourceVersion"]) + 1)
        self.objects[ref] = after
        self.patches.append((ref, operations))

    def bundles(self) -> list[bytes]:
        """Return every entry's caBundle (PEM)."""
        return [
            bundle
            for ref, found in self.objects.items()
            for bundle in decode_configuration(ref, json.dumps(found).encode()).ca_bundles
        ]

    def set_bundle(self, ref: ConfigurationRef, index: int, pem: bytes) -> None:
        config = self.objects[ref]["webhooks"][index]["clientConfig"]
        config["caBundle"] = b64encode(pem).decode()
        metadata = self.objects[ref]["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)


def _configuration(names: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": "fairslice", "resourceVersion": "7"},
        "webhooks": [
            {"name": name, "sideEffects": "None", "clientConfig": {"service": {"name": "w"}}}
            for name in names
        ],
    }


def strict_client(bundle: bytes) -> ssl.SSLContext:
    """Trust this bundle as Python 3.13 does by default, on every version."""
    context = ssl.create_default_context(cadata=bundle.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@asynccontextmanager
async def tls_server(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Echo lines over TLS on a local port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def handshake(
    port: int, client: ssl.SSLContext, host: str = HOST
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
    """Connect, verify, and return the connection with the serial that was served."""
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=host
        )
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return reader, writer, x509.load_der_x509_certificate(der).serial_number


async def served(port: int, client: ssl.SSLContext, host: str = HOST) -> int:
    """Connect, verify, hang up; return the serial that was served."""
    _, writer, serial = await handshake(port, client, host)
    writer.close()
    await writer.wait_closed()
    return serial


def users_secret(now: datetime) -> dict[str, bytes]:
    """Fill a Secret as cert-manager does: an authority of its own, without its key."""
    key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "example.org")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])

    def sign(name: x509.Name, public: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=90))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(x509.KeyUsage(not ca, *[False] * 4, ca, *[False] * 3), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)

    return {
        "ca.crt": sign(issuer, key.public_key(), ca=True),
        "tls.crt": sign(subject, leaf_key.public_key(), ca=False),
        "tls.key": leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }
