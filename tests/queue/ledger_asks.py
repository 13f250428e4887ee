"""What random histories of the ledger are made of."""

from hypothesis import strategies as st

from fairslice.booking import Booking, Option, Ref, State
from fairslice_queue.ledger import Lending, Limits

from .books import POOL, PRODUCT, SLICE, WHOLE, option

TWO_KINDS = Option(pool=POOL, product=PRODUCT, mode="mig", milli=1125, units={WHOLE: 1, SLICE: 1})
OPTIONS = st.sampled_from(
    [
        (option(),),
        (option(),),
        (option(units=2),),
        (option(SLICE, 125), option()),
        (option(), option(pool="t4")),
        (TWO_KINDS, option(SLICE, 250)),
    ]
)
POOLS = [
    {POOL: None, "t4": None},
    {POOL: None, "t4": None},
    {POOL: 2000, "t4": 1000},
    {POOL: 3000, "t4": None},
    {POOL: 4000},
]
CAPS = st.builds(
    Limits,
    pools=st.sampled_from(POOLS),
    work_class=st.sampled_from([None, None, None, 3000]),
    user=st.sampled_from([None, None, None, 2500]),
    resources=st.sampled_from([{}, {}, {}, {WHOLE: 3}]),
    surge=st.sampled_from([0, 1000, 2000]),
    guaranteed=st.sampled_from([{}, {}, {POOL: 0}, {POOL: 1000, "t4": 1000}, {POOL: 2000}]),
)
OFFERS = tuple(f"{pool}|{PRODUCT}|{name}" for pool in (POOL, "t4") for name in (WHOLE, SLICE))
NODES = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 5))
CAPACITY = st.builds(
    lambda wholes, others: {OFFERS[0]: wholes, **others},
    st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(2, 5), min_size=2),
    st.dictionaries(st.sampled_from(OFFERS[1:]), NODES),
)
KEPT = st.dictionaries(st.sampled_from(["cv", "nlp", "nlp"]), st.sampled_from([500, 1000, 3000]))
LENDING = st.dictionaries(
    st.sampled_from([POOL, POOL, "t4"]),
    st.builds(Lending, capacity=st.sampled_from([3000, 6000, 9000]), kept=KEPT),
)
IDS = st.sampled_from([f"b{n}" for n in range(8)])
PODS = st.sampled_from(["p1", "p2"])
PLACES = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 2), max_size=2)


def team_of(identity: str) -> str:
    return "cv" if identity < "b6" else "nlp"


@st.composite
def asks(draw: st.DrawFn) -> Booking:
    """A booking whose id tells its team: ids are random, two teams never share one."""
    identity = draw(IDS)
    group = draw(st.sampled_from(["", "Deployment ns/web", "Deployment ns/web"]))
    return Booking(
        id=identity,
        ref=Ref(
            kind="Pod", namespace=team_of(identity), name=draw(st.sampled_from(["", "x", "y"]))
        ),
        team=team_of(identity),
        work_class=draw(st.sampled_from(["production", "training"])),
        rank=draw(st.sampled_from([2, 1, 1, 0, 0, 0])),
        user=draw(st.sampled_from(["ada", "bob"])),
        state=State.QUEUED,
        pods=draw(st.sampled_from([0, 1, 1, 1, 2, 3])),
        options=draw(OPTIONS),
        group=group,
        group_revision=draw(st.sampled_from(["", "v1", "v2", "v1", "v2"])) if group else "",
    )
