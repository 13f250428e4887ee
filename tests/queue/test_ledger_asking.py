"""What comes in bursts is asked for on a form: letter by letter what each would have written."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fairslice.booking import Booking, Option, Ref, State
from fairslice_queue import ledger_asking
from fairslice_queue.bookkeeping import BookRequest, Limits
from fairslice_queue.ledger_asking import BookingForm, book_arguments

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = words.filter(bool)
ids = st.integers(0, 16**20 - 1).map(lambda number: f"b{number:020x}")
times = st.one_of(st.floats(1.7e9, 2e9), st.integers(1_700_000_000, 2_000_000_000).map(float))
options = st.lists(
    st.builds(
        Option,
        pool=words,
        product=words,
        mode=st.sampled_from(["whole", "mig"]),
        milli=st.integers(1, 8000),
        units=st.dictionaries(words, st.integers(1, 8), max_size=2),
        rename=st.dictionaries(words, words, max_size=1),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> BookRequest:
    given_options = draw(options)
    named = draw(st.booleans())
    now = draw(times)
    booking = Booking(
        id=draw(ids),
        ref=Ref(
            kind=draw(st.sampled_from(["Pod", "Job"])),
            namespace=draw(words),
            name=draw(names) if named else "",
            generate_name="" if named else draw(names),
        ),
        team=draw(words),
        work_class=draw(words),
        user=draw(words),
        rank=draw(st.integers(0, 9)),
        pods=draw(st.integers(1, 99)),
        options=given_options,
        state=State.QUEUED,
        queued_at=now,
        since=now,
        group=draw(words),
    )
    return BookRequest(
        booking=booking,
        limits=Limits(pools=draw(st.dictionaries(words, st.none() | st.integers(0, 9)))),
        now=now,
        tentative_seconds=draw(st.sampled_from([10.0, 0.5, 30.25])),
        queued_options=draw(st.sampled_from([None, given_options, given_options[:1]])),
        spare=booking.id,
    )


@given(requests(), st.sampled_from(["team", "user", "group", "work_class"]))
def test_whoever_uses_the_words_that_stand_for_blanks_gets_no_form(
    request: BookRequest, where: str
) -> None:
    for word in (ledger_asking._NAME, ledger_asking._ID, repr(ledger_asking._NOW)):
        booking = structs.replace(request.booking, **{where: f"x{word}y"})
        assert BookingForm.of(structs.replace(request, booking=booking)) is None


@given(requests(), ids, names, times)
def test_a_form_writes_what_the_request_itself_would(
    request: BookRequest, booking_id: str, name: str, now: float
) -> None:
    ref = request.booking.ref
    ref = structs.replace(ref, name=name) if ref.name else ref
    booking = structs.replace(request.booking, id=booking_id, ref=ref, queued_at=now, since=now)
    other = structs.replace(request, booking=booking, now=now, spare=booking_id)
    form = BookingForm.of(request)
    assert form is not None
    assert form.filled(booking_id, name, now) == book_arguments(other)
