"""Bookings read from the books share what is equal, and say what was written."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fairslice.booking import State
from fairslice_queue.ledger_records import decode_record, encode_record

from .plans import booking, option

bookings = st.builds(
    lambda name, team, gpus, state, pods, place: booking(
        name, team, gpus, state=state, pods=pods, place=place, user=f"of {team}", kind="Pod"
    ),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["cv", "nlp"]),
    st.integers(1, 3),
    st.sampled_from([State.QUEUED, State.RUNNING]),
    st.integers(1, 9),
    st.dictionaries(st.sampled_from(["n1", "n2"]), st.integers(1, 4)),
)


@given(st.lists(bookings, max_size=8))
def test_what_is_read_is_what_was_written(made: list) -> None:
    read = [decode_record(encode_record(item)) for item in made]
    assert read == made


def test_like_bookings_share_their_options_and_names() -> None:
    one, other = (decode_record(encode_record(booking(name, gpus=2))) for name in "ab")
    assert one.options is other.options
    assert one.team is other.team
    assert one.user is other.user
    assert one.ref.namespace is other.ref.namespace
    assert one.ref.name != other.ref.name


def test_unlike_options_stay_apart() -> None:
    one = decode_record(encode_record(booking("a", options=[option(1)])))
    other = decode_record(encode_record(booking("a", options=[option(1), option(2)])))
    assert one == structs.replace(other, options=(option(1),))
