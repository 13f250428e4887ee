"""Reading the Secret: whose it is, what is whole, what is wrong."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairslice_certs.bundle import encode, parse
from fairslice_certs.rotation import next_step, perform
from fairslice_certs.secret import Owner, StoredSecret, read_secret

from .world import POLICY, users_secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS = perform(next_step({}, [], frozenset(), NOW, POLICY), {}, NOW, POLICY)
OTHER = perform(next_step({}, [], frozenset(), NOW, POLICY), {}, NOW, POLICY)
USERS = users_secret(NOW)
PEMS = [*OURS.values(), *OTHER.values(), *USERS.values()]


@pytest.mark.parametrize(
    ("data", "owner"),
    [
        ({}, Owner.NOBODY),
        ({"tls.crt": b"", "tls.key": b""}, Owner.NOBODY),
        ({"note": b"hello"}, Owner.NOBODY),
        (OURS, Owner.FAIRSLICE),
        ({**OURS, "ca.key": b""}, Owner.FAIRSLICE),
        ({**OURS, "ca.crt": b"", "tls.crt": b""}, Owner.FAIRSLICE),
        ({"tls.crt": OURS["tls.crt"]}, Owner.FAIRSLICE),
        ({"ca.crt": OURS["ca.crt"]}, Owner.FAIRSLICE),
        (USERS, Owner.USER),
        ({**OURS, "tls.crt": USERS["tls.crt"], "tls.key": USERS["tls.key"]}, Owner.USER),
        ({"tls.key": USERS["tls.key"]}, Owner.USER),
    ],
)
def test_the_owner_is_told_by_what_the_secret_holds(data: dict[str, bytes], owner: Owner) -> None:
    assert read_secret(data).owner is owner


def test_a_whole_secret_has_no_problems() -> None:
    for data in (OURS, USERS):
        secret = read_secret(data)
        assert secret.problems == ()
        assert encode(secret.chain) == data["tls.crt"]
        assert encode(secret.authorities) == data["ca.crt"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tls.crt": b"x"}, "tls.crt is unreadable"),
        ({"tls.key": b""}, "tls.key is missing"),
        ({"tls.key": OTHER["tls.key"]}, "tls.key does not belong to tls.crt"),
        ({"ca.key": OTHER["ca.key"]}, "ca.key does not belong to ca.crt"),
        ({"ca.crt": b""}, "ca.crt is missing"),
        ({"ca-next.crt": OTHER["ca.crt"]}, "ca-next.key is missing"),
    ],
)
def test_problems_name_the_key_and_what_is_wrong(change: dict[str, bytes], problem: str) -> None:
    assert problem in read_secret({**OURS, **change}).problems


def test_without_a_ca_crt_a_users_chain_or_self_signed_certificate_is_trusted() -> None:
    chained = {"tls.crt": USERS["tls.crt"] + USERS["ca.crt"], "tls.key": USERS["tls.key"]}
    assert encode(read_secret(chained).authorities) == USERS["ca.crt"]
    lone = {"tls.crt": USERS["tls.crt"], "tls.key": USERS["tls.key"]}
    assert read_secret(lone).authorities == ()


SECRETS = st.dictionaries(
    st.sampled_from(["ca.crt", "ca.key", "tls.crt", "tls.key", "ca-next.crt", "ca-next.key"])
    | st.just("ca-next.confirmed"),
    st.sampled_from(PEMS)
    | st.binary(max_size=40)
    | st.builds(
        lambda pem, at, put: pem[:at] + put + pem[at + 1 :],
        st.sampled_from(PEMS),
        st.integers(0, 800),
        st.binary(max_size=2),
    ),
)


@settings(max_examples=300, deadline=None)
@given(data=SECRETS, published=st.lists(st.sampled_from(PEMS) | st.binary(max_size=20), max_size=3))
def test_any_data_gets_a_step_and_a_step_that_writes_never_touches_a_users_certificate(
    data: dict[str, bytes], published: list[bytes]
) -> None:
    for serials in (None, frozenset[int](), frozenset({1})):
        step = next_step(data, published, serials, NOW, POLICY)
        if step.action.writes_secret:
            assert read_secret(data).owner is not Owner.USER
            perform(step, data, NOW, POLICY)


@settings(max_examples=100, deadline=None)
@given(data=SECRETS)
def test_no_problem_and_no_repr_quotes_a_key(data: dict[str, bytes]) -> None:
    secret = read_secret(data)
    step = next_step(data, [], None, NOW, POLICY)
    shown = f"{secret!r} {step!r} {StoredSecret(data, '1')!r}"
    for pem in PEMS:
        if b"PRIVATE" in pem:
            assert pem.splitlines()[1].decode() not in shown


def test_a_bundle_with_text_around_it_or_twice_the_same_is_read_once() -> None:
    ca = OURS["ca.crt"]
    assert encode(parse(b"# ours\n" + ca + b"\n" + ca)) == ca
    assert parse(b"") == parse(b"\xff\xfe") == ()
