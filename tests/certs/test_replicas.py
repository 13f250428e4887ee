"""What replicas serve, seen by real handshakes."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from fairslice_certs.authority import create_authority, issue_certificate
from fairslice_certs.replicas import OwnReplica, ProbedReplicas
from fairslice_certs.serving import ServingContext

from .world import NAMES, tls_server

NOW = datetime.now(UTC)
AUTHORITY = create_authority(NOW, timedelta(days=9))


def serving() -> tuple[ServingContext, int]:
    context = ServingContext()
    pair = issue_certificate(AUTHORITY, NAMES, NOW, timedelta(days=1))
    return context, context.load(pair.certificate_pem(), pair.key_pem()).serial


def probe(*ports: int, time_limit: float = 2.0) -> ProbedReplicas:
    async def addresses() -> Sequence[tuple[str, int]]:
        return [("127.0.0.1", port) for port in ports]

    return ProbedReplicas(addresses, time_limit=time_limit)


async def hear_without_answering(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.read(-1)
    writer.close()


async def test_the_serials_of_all_replicas_are_seen() -> None:
    (one, first), (two, second) = serving(), serving()
    async with tls_server(one.context) as port, tls_server(two.context) as other:
        assert await probe(port, other, port).serials() == {first, second}


async def test_a_replica_that_does_not_listen_serves_nothing() -> None:
    context, serial = serving()
    async with tls_server(context.context) as gone:
        pass
    async with tls_server(context.context) as port:
        assert await probe(port, gone).serials() == {serial}
    assert await probe(gone).serials() == frozenset()
    assert await probe().serials() == frozenset()


async def test_a_replica_that_does_not_answer_makes_the_answer_unknown() -> None:
    context, _ = serving()
    silent = await asyncio.start_server(hear_without_answering, "127.0.0.1", 0)
    async with silent, tls_server(context.context) as port:
        silent_port = silent.sockets[0].getsockname()[1]
        assert await probe(port, silent_port, time_limit=0.2).serials() is None
        # One that listens without a certificate is not known to be without clients.
        async with tls_server(ServingContext().context) as bare:
            assert await probe(port, bare).serials() is None


async def test_a_single_process_knows_what_it_serves() -> None:
    context, serial = serving()
    assert await OwnReplica(context).serials() == {serial}
    assert await OwnReplica(ServingContext()).serials() == frozenset()
