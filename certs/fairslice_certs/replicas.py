"""Which certificate each webhook replica really serves, seen from outside by a handshake."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from cryptography import x509

from .secret import UnavailableError
from .serving import ServingContext

__all__ = ["OwnReplica", "ProbedReplicas", "Replicas", "served_serial"]

Address = tuple[str, int]


class Replicas(Protocol):
    """Knows what all replicas serve at the moment."""

    async def serials(self) -> frozenset[int] | None:
        """Return the serials served, empty if nobody serves; None if not known of everyone."""


async def served_serial(host: str, port: int, *, time_limit: float = 2.0) -> int | None:
    """Return the serial of the certificate served there; None if nobody listens.

    Nothing is trusted and nothing sent: the certificate is only looked at. Raises `OSError`
    or `TimeoutError` if that fails, `ValueError` if it is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(time_limit):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ConnectionRefusedError:
        return None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(der).serial_number
    finally:
        writer.transport.abort()


class ProbedReplicas:
    """Asks for the replicas' addresses each time, and looks at what each of them serves."""

    def __init__(
        self,
        addresses: Callable[[], Awaitable[Sequence[Address]]],
        *,
        time_limit: float = 2.0,
    ) -> None:
        self._addresses = addresses
        self._time_limit = time_limit

    async def serials(self) -> frozenset[int] | None:
        """Return the serials served; None if it could not be seen of every replica."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(served_serial(host, port, time_limit=self._time_limit))
                    for host, port in await self._addresses()
                ]
        except* (OSError, TimeoutError, ValueError, UnavailableError):
            pass
        else:
            return frozenset(serial for task in tasks if (serial := task.result()) is not None)
        return None


class OwnReplica:
    """For a webhook that runs as one process: what it serves is what all replicas serve."""

    def __init__(self, serving: ServingContext) -> None:
        self._serving = serving

    async def serials(self) -> frozenset[int] | None:
        """Return the serial that this process serves."""
        served = self._serving.served
        return frozenset({served.serial} if served else ())
