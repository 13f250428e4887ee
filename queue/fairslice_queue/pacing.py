"""Going through many things without keeping the event loop from others."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import TypeVar

__all__ = ["paced"]

T = TypeVar("T")


async def paced(items: Collection[T], at_once: int) -> AsyncIterator[T]:
    """Yield each of what is there now, with a pause after so many."""
    for number, item in enumerate(tuple(items), 1):
        yield item
        if not number % at_once:
            await asyncio.sleep(0)
