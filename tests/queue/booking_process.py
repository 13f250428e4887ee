"""A process that books against one quota; started several times at once by a test."""

import asyncio
import sys

from fairslice.booking import Booking, Option, Ref, State
from fairslice.redis_connection import RedisConnection
from fairslice_queue.ledger import BookRequest, Ledger, Limits, Verdict


async def book_all(url: str, worker: str, count: int, limit: int) -> int:
    """Send all requests at once; return how many pods were booked."""
    option = Option(pool="a100", product="A100", mode="whole", milli=1000, units={"gpu": 1})
    async with RedisConnection.parse(url, call_seconds=10.0) as redis:
        ledger = Ledger(redis)
        await ledger.ready()
        # All start together, or the first would take everything.
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)

        async def one(number: int) -> int:
            identity = f"b-{worker}-{number}"
            pods = 1 + number % 3
            booking = Booking(
                id=identity,
                ref=Ref(kind="Job", namespace="ns", name=identity),
                team="cv",
                work_class="training",
                rank=1,
                user="ada",
                state=State.QUEUED,
                pods=pods,
                options=(option,),
            )
            request = BookRequest(
                booking=booking,
                limits=Limits(pools={"a100": limit}),
                now=1_700_000_000.0,
                overflow_queue=False,
                max_tentative=100_000,
            )
            outcome = await ledger.book(request)
            if outcome.verdict is Verdict.BOOKED and number % 2 == 0:
                assert await ledger.book(request) == outcome
            return pods if outcome.verdict is Verdict.BOOKED else 0

        return sum(await asyncio.gather(*(one(number) for number in range(count))))


if __name__ == "__main__":
    sys.stdout.write(
        str(asyncio.run(book_all(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    )
