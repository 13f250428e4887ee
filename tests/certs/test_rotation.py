"""The rotation step by step: what is decided for each state of Secret, caBundles, replicas."""

from datetime import UTC, datetime, timedelta

from cryptography import x509

from fairslice_certs.bundle import encode, parse
from fairslice_certs.rotation import Action, Step, next_step, perform
from fairslice_certs.secret import read_secret

from .world import POLICY, users_secret

START = datetime(2026, 1, 1, tzinfo=UTC)
DUE = START + timedelta(days=250)
Data = dict[str, bytes]


def fresh(now: datetime = START) -> Data:
    step = next_step({}, [], frozenset(), now, POLICY)
    assert step.action is Action.BOOTSTRAP
    return perform(step, {}, now, POLICY)


def serial(data: Data) -> int:
    leaf = read_secret(data).leaf
    assert leaf
    return leaf.serial_number


def certificate(pem: bytes) -> x509.Certificate:
    return parse(pem)[0]


def at(
    data: Data, published: list[bytes], serials: set[int] | None, now: datetime = DUE
) -> tuple[Step, Data]:
    step = next_step(data, published, serials, now, POLICY)
    return step, perform(step, data, now, POLICY) if step.action.writes_secret else data


def test_an_empty_world_gets_authority_and_certificate_at_once() -> None:
    data = fresh()
    assert set(data) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    step, _ = at(data, [b"", b""], set(), START)
    assert step.action is Action.PUBLISH
    assert encode(step.bundle) == data["ca.crt"]


def test_good_certificates_are_left_as_they_are() -> None:
    data = fresh()
    step, _ = at(data, [data["ca.crt"]], {serial(data)}, START + timedelta(days=15))
    assert step.action is Action.WAIT


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_by_the_same_authority() -> None:
    data = fresh()
    early, late = START + timedelta(days=19), START + timedelta(days=21)
    assert at(data, [data["ca.crt"]], {serial(data)}, early)[0].action is Action.WAIT
    step, after = at(data, [data["ca.crt"]], {serial(data)}, late)
    assert step.action is Action.ISSUE
    assert after["ca.crt"] == data["ca.crt"]
    assert serial(after) != serial(data)


def test_a_certificate_that_can_not_get_longer_is_not_renewed_over_and_over() -> None:
    data = fresh()
    end = certificate(data["ca.crt"]).not_valid_after_utc
    stuck = [data["ca.crt"]]
    step, data = at(data, stuck, None, end - timedelta(days=3))
    assert step.action is Action.ADD_NEXT
    step, data = at(data, stuck, None, end - timedelta(days=3))
    assert step.action is Action.ISSUE
    assert at(data, stuck, None, end - timedelta(minutes=1))[0].action is Action.PUBLISH


def test_a_missing_name_makes_a_new_certificate() -> None:
    data = fresh()
    names = POLICY.names.of_hosts([*POLICY.names.dns, "gpu.example.org"])
    wider = type(POLICY)(names, POLICY.authority_lifetime, POLICY.leaf_lifetime, POLICY.settle)
    step = next_step(data, [data["ca.crt"]], {serial(data)}, START, wider)
    assert step.action is Action.ISSUE
    leaf = read_secret(perform(step, data, START, wider)).leaf
    assert leaf
    assert names.covered_by(leaf)


def test_a_rotation_takes_its_phases_in_order() -> None:
    old = data = fresh(START)
    # Keep the leaf fresh, so that only the authority is due.
    _, data = at(data, [data["ca.crt"]], {serial(data)}, DUE - timedelta(days=8))
    before = serial(data)

    step, data = at(data, [old["ca.crt"]], {before})
    assert step.action is Action.ADD_NEXT
    assert serial(data) == before

    step, _ = at(data, [old["ca.crt"]], {before})
    assert step.action is Action.PUBLISH
    both = encode(step.bundle)
    assert set(parse(both)) == {certificate(old["ca.crt"]), certificate(data["ca-next.crt"])}

    assert at(data, [both, old["ca.crt"]], {before})[0].action is Action.PUBLISH
    step, data = at(data, [both, both], {before})
    assert step.action is Action.CONFIRM

    assert at(data, [both, both], {before}, DUE + timedelta(seconds=29))[0].action is Action.WAIT
    later = DUE + timedelta(seconds=31)
    step, data = at(data, [both, both], {before}, later)
    assert step.action is Action.ISSUE_FROM_NEXT
    after = serial(data)

    for waiting in ({before, after}, {before}, set(), None):
        assert at(data, [both, both], waiting, later)[0].action is Action.WAIT
    step, data = at(data, [both, both], {after}, later)
    assert step.action is Action.PROMOTE
    assert set(data) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}

    step, _ = at(data, [both, both], {after}, later)
    assert step.action is Action.PUBLISH
    assert encode(step.bundle) == data["ca.crt"]
    assert at(data, [data["ca.crt"]], {after}, later)[0].action is Action.WAIT


def test_an_old_authority_that_has_expired_is_dropped_whatever_replicas_say() -> None:
    data = fresh(START)
    _, data = at(data, [data["ca.crt"]], None)
    both = data["ca.crt"] + data["ca-next.crt"]
    _, data = at(data, [both], None)
    later = DUE + timedelta(seconds=31)
    if at(data, [both], None, later)[0].action is Action.ISSUE:
        _, data = at(data, [both], None, later)
    _, data = at(data, [both], None, later)
    assert at(data, [both], None, later)[0].action is Action.WAIT
    expired = START + timedelta(days=366)
    actions = []
    while (step := next_step(data, [both], None, expired, POLICY)).action is not Action.WAIT:
        actions.append(step.action)
        both = encode(step.bundle) if step.action is Action.PUBLISH else both
        data = perform(step, data, expired, POLICY)
    assert Action.PROMOTE in actions
    assert both == data["ca.crt"]


def test_an_emptied_secret_keeps_the_published_authority_trusted_until_nobody_serves_it() -> None:
    lost = fresh()
    now = START + timedelta(days=1)
    step, data = at({}, [lost["ca.crt"]], {serial(lost)}, now)
    assert step.action is Action.ADD_NEXT
    assert "tls.crt" not in data
    step, _ = at(data, [lost["ca.crt"]], {serial(lost)}, now)
    assert step.action is Action.PUBLISH
    assert set(step.bundle) == {certificate(lost["ca.crt"]), certificate(data["ca-next.crt"])}


def test_an_emptied_secret_is_filled_at_once_when_no_replica_serves_anything() -> None:
    lost = fresh()
    step, data = at({"ca.crt": b"", "tls.crt": b""}, [lost["ca.crt"]], set(), START)
    assert step.action is Action.BOOTSTRAP
    assert read_secret(data).problems == ()


def test_a_lost_signing_key_brings_the_next_authority_early_and_says_why() -> None:
    data = fresh()
    del data["ca.key"]
    step, after = at(data, [data["ca.crt"]], {serial(data)}, START)
    assert step.action is Action.ADD_NEXT
    assert step.repairs
    assert "ca.key is missing" in step.reason
    assert after["tls.crt"] == data["tls.crt"]


def test_a_broken_serving_certificate_is_issued_again_by_the_same_authority() -> None:
    good = fresh()
    for broken in ({"tls.crt": b"oops"}, {"tls.key": fresh()["tls.key"]}, {"tls.key": b""}):
        data = {**good, **broken}
        step, after = at(data, [data["ca.crt"]], {serial(good)}, START)
        assert step.action is Action.ISSUE
        assert step.repairs
        assert after["ca.crt"] == good["ca.crt"]
        assert read_secret(after).problems == ()


def test_a_next_authority_without_its_key_is_replaced() -> None:
    data = fresh(START)
    _, data = at(data, [data["ca.crt"]], None)
    del data["ca-next.key"]
    both = data["ca.crt"] + data["ca-next.crt"]
    step, after = at(data, [both], None)
    assert step.action is Action.ADD_NEXT
    assert after["ca-next.crt"] != data["ca-next.crt"]
    # Maybe somebody serves its certificates: it stays trusted.
    assert certificate(data["ca-next.crt"]) in at(after, [both], None)[0].bundle


def test_emptying_the_secret_again_and_again_does_not_grow_the_bundle_without_end() -> None:
    lost = fresh()
    bundle = lost["ca.crt"]
    for minute in range(20):
        now = START + timedelta(minutes=minute)
        _, data = at({}, [bundle], {serial(lost)}, now)
        bundle = encode(at(data, [bundle], {serial(lost)}, now)[0].bundle)
    assert certificate(lost["ca.crt"]) in parse(bundle)
    assert len(parse(bundle)) <= 9


def test_keys_of_others_in_the_secret_are_kept() -> None:
    data = {"note": b"mine"}
    step, after = at(data, [], set(), START)
    assert step.action is Action.BOOTSTRAP
    assert after["note"] == b"mine"


def test_a_users_certificate_is_published_and_never_written() -> None:
    user = users_secret(START)
    step, _ = at(user, [b""], set(), START)
    assert step.action is Action.PUBLISH
    assert encode(step.bundle) == user["ca.crt"]
    step, _ = at(user, [user["ca.crt"]], None, START)
    assert step.action is Action.HANDS_OFF


def test_a_users_certificate_is_left_alone_even_when_it_is_no_good() -> None:
    user = users_secret(START)
    late = START + timedelta(days=400)
    step, _ = at(user, [], None, late)
    assert step.action is Action.HANDS_OFF
    assert "expired" in step.reason
    step, _ = at({**user, "tls.key": b""}, [user["ca.crt"]], None, START)
    assert step.action is Action.HANDS_OFF
    assert "tls.key is missing" in step.reason


def test_a_users_certificate_put_beside_our_authority_is_not_taken_for_ours() -> None:
    ours, user = fresh(), users_secret(START)
    mixed = {**ours, "tls.crt": user["tls.crt"] + user["ca.crt"], "tls.key": user["tls.key"]}
    step, _ = at(mixed, [ours["ca.crt"]], {serial(ours)}, START)
    assert step.action is Action.PUBLISH
    # Ours stays trusted while replicas still serve what it signed.
    assert set(step.bundle) == {certificate(user["ca.crt"]), certificate(ours["ca.crt"])}
    step, _ = at(mixed, [encode(step.bundle)], {serial(mixed)}, START)
    assert encode(step.bundle) == user["ca.crt"]
