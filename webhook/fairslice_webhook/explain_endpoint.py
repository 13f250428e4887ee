"""POST /explain: plain JSON in, plain JSON out, beside the health endpoints.

Body: `{"namespace": …, "user": …, "groups": […], "objects": [manifest, …]}`. Answer:
`{"items": [explanation, …]}`, or `{"error": …}` with a status that says whose fault it is.
"""

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from fairslice_queue.ledger import LedgerUnavailable
from fairslice_webhook.explain import Explainer, ExplainRequest
from fairslice_webhook.review import ReviewError
from fairslice_webhook.view import View

__all__ = ["MAX_EXPLAIN_BYTES", "ExplainEndpoint"]

MAX_EXPLAIN_BYTES = 1024 * 1024

_SECONDS = 10.0
# Admission goes first: explaining is for people, who can wait their turn.
_AT_ONCE = 2

_DECODER = msgspec.json.Decoder(ExplainRequest)
_ENCODE = msgspec.json.Encoder().encode


class ExplainEndpoint:
    """Answers requests. `view` gives the newest view, None before there is one."""

    def __init__(self, explainer: Explainer, view: Callable[[], View | None]) -> None:
        self._explainer = explainer
        self._view = view
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def handle(self, request: web.Request) -> web.Response:
        """Explain what the body holds."""
        view = self._view()
        if view is None:
            return _error(503, "not ready: the cluster is not known yet")
        try:
            async with asyncio.timeout(_SECONDS):
                wanted = _DECODER.decode(await request.read())
                async with self._turn:
                    items = await self._explainer.explain(wanted, view)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"more than {MAX_EXPLAIN_BYTES} bytes")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ReviewError) as error:
            return _error(400, str(error))
        except (LedgerUnavailable, TimeoutError):
            return _error(503, "the books can't be read just now")
        return web.Response(body=_ENCODE({"items": items}), content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=_ENCODE({"error": text}), content_type="application/json"
    )
