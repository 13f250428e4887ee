"""`decide` by itself, without network and ledger: where a webhook's own time goes."""

import secrets
import time
from collections.abc import Callable

from fairslice_queue.ledger import Outcome, Verdict
from fairslice_webhook.decide import Phase, conclude, decide
from fairslice_webhook.decision import Answer, Book
from fairslice_webhook.patching import try_out
from fairslice_webhook.review import decode_review, encode_response
from fairslice_webhook.view import Call

from .load import TEAM
from .measuring import Samples
from .reviews import ReviewSet
from .scenery import team_name, view

__all__ = ["steps"]

_TIMES = 3000
_WARM_UP = 200


def _timed(step: Callable[[], object]) -> Samples:
    for _ in range(_WARM_UP):
        step()
    seconds = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return Samples.of(seconds)


def steps(reviews: ReviewSet) -> dict[str, Samples]:
    """Time each step of answering a GPU pod that is booked, and `decide` of the others."""
    seen, call = view(), Call(time.time(), "b" + secrets.token_hex(10), "p" + secrets.token_hex(10))
    team = team_name(0).encode()
    body = reviews.pod.replace(TEAM, team)
    review = decode_review(body)
    wish = decide(review, seen, call, Phase.MUTATE)
    assert isinstance(wish, Book), wish
    option = wish.request.booking.options[0]
    outcome = Outcome(verdict=Verdict.BOOKED, id=call.booking, chosen=0, option=option)
    answer = conclude(wish, outcome)
    assert isinstance(answer, Answer)
    found = {
        "decode the review": _timed(lambda: decode_review(body)),
        "decide a GPU pod": _timed(lambda: decide(review, seen, call, Phase.MUTATE)),
        "conclude": _timed(lambda: conclude(wish, outcome)),
        "try the patch": _timed(lambda: try_out(answer.ops, review.object)),
        "encode the answer": _timed(
            lambda: encode_response(review.uid, allowed=True, patch=answer.ops)
        ),
    }
    for name, other in (("pod without GPUs", reviews.plain), ("Job", reviews.job)):
        read = decode_review(other.replace(TEAM, team))
        found[f"decide a {name}"] = _timed(
            lambda read=read: decide(read, seen, call, Phase.MUTATE)  # type: ignore[misc]
        )
    return found
