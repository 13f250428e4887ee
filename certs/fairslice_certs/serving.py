"""The webhook's TLS context, whose certificate changes while it serves.

Each certificate gets a context of its own, complete before the first handshake sees it; the
live context hands every new handshake to the newest. Loading into the live context instead
would leave it broken after a key that doesn't fit, and after a change from ECDSA to RSA (a
user's certificate) OpenSSL would go on serving the old one. Open connections are kept.
"""

import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from .bundle import Certificates, parse

__all__ = ["CertificateUnusableError", "ServedCertificate", "ServingContext"]


class CertificateUnusableError(Exception):
    """The certificate and key can't be served together; what was served before still is."""


@dataclass(frozen=True)
class ServedCertificate:
    """The certificate that new connections get."""

    chain: Certificates

    @property
    def leaf(self) -> x509.Certificate:
        """The certificate itself."""
        return self.chain[0]

    @property
    def serial(self) -> int:
        """Its serial number, which tells replicas' certificates apart."""
        return self.leaf.serial_number

    @property
    def not_after(self) -> datetime:
        """When it expires (UTC)."""
        return self.leaf.not_valid_after_utc


class ServingContext:
    """An `ssl.SSLContext` to listen with, and the certificate it serves at the moment.

    `configure` is applied to the live context and to each certificate's own (client
    authentication needs both: verify_mode counts on the first, trusted CAs on the second).
    Before the first certificate, handshakes fail.
    """

    def __init__(self, configure: Callable[[ssl.SSLContext], None] | None = None) -> None:
        self._configure = configure
        self._newest: ssl.SSLContext | None = None
        self._served: ServedCertificate | None = None
        self.context = self._new_context()
        self.context.sni_callback = self._choose

    @property
    def served(self) -> ServedCertificate | None:
        """What new connections get; None before the first certificate."""
        return self._served

    def load(self, certificate_pem: bytes, key_pem: bytes) -> ServedCertificate:
        """Serve this certificate (chain) from the next handshake on.

        Raises `CertificateUnusableError` if the two do not fit or can't be read.
        """
        chain = parse(certificate_pem)
        scratch = self._new_context()
        try:
            with _private_file(certificate_pem + b"\n" + key_pem) as path:
                # An encrypted key would otherwise ask for its password on the terminal.
                scratch.load_cert_chain(path, password=b"")
        except (ssl.SSLError, ValueError) as error:
            raise CertificateUnusableError(f"can't serve the certificate: {error}") from None
        if not chain:
            raise CertificateUnusableError("can't serve the certificate: it is unreadable")
        self._newest, self._served = scratch, ServedCertificate(chain)
        return self._served

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._configure:
            self._configure(context)
        return context

    def _choose(
        self, handshake: ssl.SSLObject, name: str | None, live: ssl.SSLContext
    ) -> int | None:
        # Called for every handshake, with or without a server name.
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        handshake.context = self._newest
        return None


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Lend a path to content that only this process can read (in memory, on Linux)."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("certificate")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield path
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            os.unlink(path)
