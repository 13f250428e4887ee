"""The Secret that holds the webhook's authority and serving certificate.

Keys: `ca.crt`, `ca.key`, `tls.crt`, `tls.key`; while the authority changes also
`ca-next.crt`, `ca-next.key` and `ca-next.confirmed` (when every caBundle was first seen to
hold the next authority, ISO 8601). A Secret that a person or cert-manager filled holds
`tls.crt`, `tls.key` and mostly `ca.crt`; it is used and never written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from .authority import ORGANIZATION, KeyPair
from .bundle import Certificates, is_issued_by, parse, trusts

__all__ = [
    "AlreadyExistsError",
    "CertificateSecret",
    "ConflictError",
    "Owner",
    "SecretData",
    "SecretStore",
    "StoredSecret",
    "UnavailableError",
    "read_secret",
]

CA_CRT, CA_KEY = "ca.crt", "ca.key"
TLS_CRT, TLS_KEY = "tls.crt", "tls.key"
NEXT_CRT, NEXT_KEY, NEXT_CONFIRMED = "ca-next.crt", "ca-next.key", "ca-next.confirmed"

SecretData = Mapping[str, bytes]


class AlreadyExistsError(Exception):
    """Somebody else created the object first: read it, never create another."""


class ConflictError(Exception):
    """The object changed since it was read: read it again before deciding anything."""


class UnavailableError(Exception):
    """The API server or the disk did not answer; what is loaded stays in use."""


@dataclass(frozen=True)
class StoredSecret:
    """The Secret's data as read, and the resourceVersion that a replacement must name."""

    data: SecretData = field(repr=False)
    version: str


class SecretStore(Protocol):
    """Where the Secret lives. Every call may raise `UnavailableError`."""

    async def get(self) -> StoredSecret | None:
        """Read the Secret consistently (never from a cache); None when there is none."""

    async def create(self, data: SecretData) -> None:
        """Create the Secret, or raise `AlreadyExistsError`."""

    async def replace(self, data: SecretData, version: str) -> None:
        """Put this data in place of the version named, or raise `ConflictError`."""


class Owner(Enum):
    """Who looks after the Secret's certificates."""

    NOBODY = "nobody"
    FAIRSLICE = "fairslice"
    USER = "user"


@dataclass(frozen=True)
class CertificateSecret:
    """What the Secret holds, as far as it is whole; `problems` names the rest.

    `current` and `following` are authorities that can sign. `authorities` are all
    certificates that clients of this Secret should trust. `chain` is the serving certificate
    with its intermediates, empty unless its key is there and fits.
    """

    owner: Owner
    current: KeyPair | None
    following: KeyPair | None
    confirmed: datetime | None
    authorities: Certificates
    chain: Certificates
    problems: tuple[str, ...]

    @property
    def leaf(self) -> x509.Certificate | None:
        """The serving certificate."""
        return self.chain[0] if self.chain else None


def read_secret(data: SecretData) -> CertificateSecret:
    """Understand a Secret's data; never raises, whatever the data is."""
    owner = _owner(data)
    if owner is Owner.NOBODY:
        return CertificateSecret(owner, None, None, None, (), (), ("the Secret is empty",))
    problems: list[str] = []
    chain = _serving_chain(data, problems)
    if owner is Owner.USER:
        trusted = parse(data.get(CA_CRT, b""))
        if chain and not trusts(trusted, chain):
            if trusted:
                problems.append(f"{CA_CRT} did not issue {TLS_CRT}")
            trusted = _anchors(chain)
        return CertificateSecret(owner, None, None, None, trusted, chain, tuple(problems))
    current = _authority(data, CA_CRT, CA_KEY, problems)
    following = None
    if data.get(NEXT_CRT) or data.get(NEXT_KEY):
        following = _authority(data, NEXT_CRT, NEXT_KEY, problems)
    trusted = parse(data.get(CA_CRT, b"")) + parse(data.get(NEXT_CRT, b""))
    confirmed = _confirmed(data, problems) if following else None
    return CertificateSecret(owner, current, following, confirmed, trusted, chain, tuple(problems))


def _owner(data: SecretData) -> Owner:
    serving = parse(data.get(TLS_CRT, b""))
    if serving and not _is_ours(serving[0]):
        return Owner.USER
    filled = [
        key for key in (CA_CRT, CA_KEY, TLS_CRT, TLS_KEY, NEXT_CRT, NEXT_KEY) if data.get(key)
    ]
    if not filled:
        return Owner.NOBODY
    ours = any(_is_ours(each) for key in (CA_CRT, NEXT_CRT) for each in parse(data.get(key, b"")))
    # A signing key is something only we keep here, whatever became of its certificate.
    return Owner.FAIRSLICE if serving or ours or data.get(CA_KEY) else Owner.USER


def _is_ours(certificate: x509.Certificate) -> bool:
    organizations = certificate.issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return any(each.value == ORGANIZATION for each in organizations)


def _serving_chain(data: SecretData, problems: list[str]) -> Certificates:
    chain = parse(data.get(TLS_CRT, b""))
    key = _load_key(data, TLS_KEY, problems)
    if not chain:
        problems.append(_describe(data, TLS_CRT))
        return ()
    if key is None:
        return ()
    if key.public_key() != chain[0].public_key():
        problems.append(f"{TLS_KEY} does not belong to {TLS_CRT}")
        return ()
    return chain


def _authority(data: SecretData, crt: str, key: str, problems: list[str]) -> KeyPair | None:
    certificates = parse(data.get(crt, b""))
    private = _load_key(data, key, problems)
    if not certificates:
        problems.append(_describe(data, crt))
        return None
    if private is None:
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or (
        private.public_key() != certificates[0].public_key()
    ):
        problems.append(f"{key} does not belong to {crt}")
        return None
    return KeyPair(certificates[0], private)


def _load_key(data: SecretData, name: str, problems: list[str]) -> PrivateKeyTypes | None:
    try:
        return load_pem_private_key(data.get(name, b""), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message is left out: it may quote what it could not read.
        problems.append(_describe(data, name))
        return None


def _describe(data: SecretData, name: str) -> str:
    return f"{name} is unreadable" if data.get(name) else f"{name} is missing"


def _anchors(chain: Certificates) -> Certificates:
    """Without a ca.crt, trust what the chain ends in, or a self-signed certificate itself."""
    if len(chain) > 1:
        return chain[1:]
    return tuple(each for each in chain if is_issued_by(each, each))


def _confirmed(data: SecretData, problems: list[str]) -> datetime | None:
    text = data.get(NEXT_CONFIRMED)
    if text is None:
        return None
    try:
        confirmed = datetime.fromisoformat(text.decode())
    except ValueError:
        problems.append(f"{NEXT_CONFIRMED} is unreadable")
        return None
    return confirmed if confirmed.tzinfo else None
