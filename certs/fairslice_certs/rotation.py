"""Rotation without an outage, as a pure state machine over the Secret and the caBundles.

1. The next authority is put beside the current one and every caBundle holds both.
2. Every webhook entry is read again; once all hold both, that moment is recorded.
3. After `settle` (API servers learn of a caBundle through their own watch) the serving
   certificate is signed by the next authority.
4. When every replica serves it, or the old authority has expired, the old one is dropped.

Each step is one write, and the next step follows from what can be read: a crash between any
two, or a step done twice, changes nothing. An authority found in a caBundle but not in the
Secret (somebody emptied it) stays trusted until no replica serves its certificates.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cached_property

from cryptography import x509

from . import secret as keys
from .authority import BACKDATE, KeyPair, ServingNames, create_authority, issue_certificate
from .bundle import Certificates, is_issued_by, parse, unexpired
from .secret import CertificateSecret, Owner, SecretData, read_secret

__all__ = ["Action", "CertificatePolicy", "Step", "next_step", "perform"]

MAX_STRANGERS = 8
"""Authorities kept from caBundles though the Secret lacks them. The oldest stay: a Secret
emptied again and again breeds newer ones that never signed anything."""


@dataclass(frozen=True)
class CertificatePolicy:
    """For which names and how long; renewal is due after two thirds of a lifetime."""

    names: ServingNames
    authority_lifetime: timedelta = timedelta(days=365)
    leaf_lifetime: timedelta = timedelta(days=30)
    settle: timedelta = timedelta(seconds=30)


class Action(Enum):
    """What to do now; all but the first three write the Secret."""

    WAIT = "nothing to do"
    HANDS_OFF = "leave the user's certificate alone"
    PUBLISH = "update the caBundle of the webhook configurations"
    BOOTSTRAP = "create the authority and the serving certificate"
    ADD_NEXT = "add the next authority"
    CONFIRM = "record that every caBundle holds the next authority"
    ISSUE = "issue a serving certificate"
    ISSUE_FROM_NEXT = "issue a serving certificate from the next authority"
    PROMOTE = "drop the old authority"

    @property
    def writes_secret(self) -> bool:
        """Say whether `perform` has something to write."""
        return self not in (Action.WAIT, Action.HANDS_OFF, Action.PUBLISH)


@dataclass(frozen=True)
class Step:
    """One step, why, and the certificates every caBundle should hold (none: leave it)."""

    action: Action
    reason: str
    bundle: Certificates
    repairs: bool = False


def next_step(
    secret_data: SecretData,
    published_ca_bundles: Sequence[bytes],
    serving_serials: Set[int] | None,
    now: datetime,
    policy: CertificatePolicy,
) -> Step:
    """Decide the next step from what is stored, published (one per webhook entry) and served.

    `serving_serials` is None when it is not known what every replica serves. The caBundles
    must have been read before the Secret, or a slow writer could publish yesterday's.
    """
    state = _State(
        read_secret(secret_data),
        tuple(frozenset(parse(pem)) for pem in published_ca_bundles),
        serving_serials,
        now,
        policy,
    )
    if state.secret.owner is Owner.USER:
        action, reason = _step_of_users(state)
    else:
        action, reason = _step_of_ours(state)
    # An empty Secret is a loss only if something was made of it before.
    broken = bool(state.secret.problems) and (
        state.secret.owner is not Owner.NOBODY or bool(state.strangers)
    )
    repairs = broken and action in (Action.BOOTSTRAP, Action.ADD_NEXT, Action.ISSUE)
    return Step(action, reason, state.bundle, repairs)


def perform(
    step: Step, data: SecretData, now: datetime, policy: CertificatePolicy
) -> dict[str, bytes]:
    """Return the Secret's data after a step that writes it; keys of others are kept."""
    after = dict(data)
    secret = read_secret(data)
    match step.action:
        case Action.BOOTSTRAP:
            _put(after, keys.CA_CRT, keys.CA_KEY, create_authority(now, policy.authority_lifetime))
            _drop_next(after)
            _issue(after, read_secret(after).current, now, policy)
        case Action.ADD_NEXT:
            _drop_next(after)
            authority = create_authority(now, policy.authority_lifetime)
            _put(after, keys.NEXT_CRT, keys.NEXT_KEY, authority)
        case Action.CONFIRM:
            after[keys.NEXT_CONFIRMED] = now.astimezone(UTC).isoformat().encode()
        case Action.ISSUE:
            _issue(after, secret.current, now, policy)
        case Action.ISSUE_FROM_NEXT:
            _issue(after, secret.following, now, policy)
        case Action.PROMOTE:
            after[keys.CA_CRT], after[keys.CA_KEY] = data[keys.NEXT_CRT], data[keys.NEXT_KEY]
            _drop_next(after)
    return after


@dataclass(frozen=True)
class _State:
    secret: CertificateSecret
    published: tuple[frozenset[x509.Certificate], ...]
    serials: Set[int] | None
    now: datetime
    policy: CertificatePolicy

    @cached_property
    def current(self) -> KeyPair | None:
        return self._alive(self.secret.current)

    @cached_property
    def following(self) -> KeyPair | None:
        return self._alive(self.secret.following)

    @cached_property
    def leaf(self) -> x509.Certificate | None:
        """The Secret's serving certificate, if clients of its authorities can use it."""
        leaf = self.secret.leaf
        if leaf is None or leaf.not_valid_after_utc <= self.now:
            return None
        if self.secret.owner is Owner.USER:
            return leaf
        signed = any(is_issued_by(leaf, each) for each in self.own)
        return leaf if signed and self.policy.names.covered_by(leaf) else None

    @cached_property
    def own(self) -> Certificates:
        return unexpired(self.secret.authorities, self.now)

    @cached_property
    def strangers(self) -> Certificates:
        """Authorities that are trusted out there and not in the Secret, oldest first."""
        found = unexpired(frozenset().union(*self.published), self.now)
        unknown = [each for each in found if each not in self.own]
        return tuple(
            sorted(unknown, key=lambda each: (each.not_valid_before_utc, each.serial_number))
        )

    @cached_property
    def bundle(self) -> Certificates:
        if self.everyone_serves_leaf or not self.own:
            return self.own
        return self.own + self.strangers[:MAX_STRANGERS]

    @cached_property
    def everyone_serves_leaf(self) -> bool:
        return self.leaf is not None and self.serials == {self.leaf.serial_number}

    @property
    def is_published(self) -> bool:
        return all(entry == frozenset(self.bundle) for entry in self.published)

    @property
    def nobody_would_notice(self) -> bool:
        """No replica serves anything, or nothing that is served can be verified anyway."""
        return self.serials == set() or not (self.own or self.strangers)

    def is_trusted(self, authority: KeyPair) -> bool:
        return all(authority.certificate in entry for entry in self.published)

    def is_due(self, certificate: x509.Certificate) -> bool:
        issued, end = certificate.not_valid_before_utc + BACKDATE, certificate.not_valid_after_utc
        return self.now >= issued + (end - issued) * 2 / 3

    def needs_renewal(self, signer: KeyPair) -> bool:
        """Say whether the serving certificate is due and the signer can give a longer one."""
        return self.leaf is None or (
            self.is_due(self.leaf)
            and self.leaf.not_valid_after_utc < signer.certificate.not_valid_after_utc
        )

    def _alive(self, authority: KeyPair | None) -> KeyPair | None:
        expired = authority and authority.certificate.not_valid_after_utc <= self.now
        return None if expired else authority


def _step_of_users(state: _State) -> tuple[Action, str]:
    if state.bundle and not state.is_published:
        return Action.PUBLISH, "a caBundle differs from the user's ca.crt"
    problems = state.secret.problems
    if state.leaf is None and not problems:
        problems = ("the certificate has expired",)
    return Action.HANDS_OFF, "; ".join(problems) or "the Secret holds a user's certificate"


def _step_of_ours(state: _State) -> tuple[Action, str]:
    current, following, leaf = state.current, state.following, state.leaf
    problems = "; ".join(state.secret.problems)
    if following is None:
        if current is None and state.nobody_would_notice:
            return Action.BOOTSTRAP, problems or "the authority has expired"
        if current is None or any(each != current.certificate for each in state.own):
            return Action.ADD_NEXT, problems or "the authority cannot sign any more"
        if state.is_due(current.certificate):
            return Action.ADD_NEXT, "two thirds of the authority's lifetime are over"
    elif leaf and is_issued_by(leaf, following.certificate):
        return _finish(state, following)
    if current and state.is_trusted(current) and state.needs_renewal(current):
        return Action.ISSUE, problems or _why_issue(state)
    if not state.is_published:
        return Action.PUBLISH, "a caBundle differs"
    if following is None:
        return Action.WAIT, "certificates are good"
    return _switch(state)


def _switch(state: _State) -> tuple[Action, str]:
    """Both authorities are published: confirm, wait, then sign with the next one."""
    if state.leaf is None and state.serials == set():
        return Action.ISSUE_FROM_NEXT, "no replica serves anything"
    confirmed = state.secret.confirmed
    if confirmed is None:
        return Action.CONFIRM, "every caBundle holds the next authority"
    if state.now < confirmed + state.policy.settle:
        return Action.WAIT, "API servers are taking up the next authority"
    return Action.ISSUE_FROM_NEXT, "every caBundle has held the next authority long enough"


def _finish(state: _State, following: KeyPair) -> tuple[Action, str]:
    """The next authority signs: drop the old one when nobody needs it."""
    if not state.is_published:
        return Action.PUBLISH, "a caBundle differs"
    if state.needs_renewal(following):
        return Action.ISSUE_FROM_NEXT, _why_issue(state)
    if state.current is None:
        return Action.PROMOTE, "the old authority is gone or has expired"
    if state.everyone_serves_leaf:
        return Action.PROMOTE, "every replica serves the next authority's certificate"
    return Action.WAIT, "not every replica is known to serve the next authority's certificate"


def _why_issue(state: _State) -> str:
    if state.leaf:
        return "two thirds of the certificate's lifetime are over"
    return "the certificate has expired, lacks a name, or comes from another authority"


def _put(data: dict[str, bytes], crt: str, key: str, pair: KeyPair) -> None:
    data[crt], data[key] = pair.certificate_pem(), pair.key_pem()


def _drop_next(data: dict[str, bytes]) -> None:
    for key in (keys.NEXT_CRT, keys.NEXT_KEY, keys.NEXT_CONFIRMED):
        data.pop(key, None)


def _issue(
    data: dict[str, bytes], signer: KeyPair | None, now: datetime, policy: CertificatePolicy
) -> None:
    if signer is None:
        raise ValueError("the step does not belong to this Secret: it holds no signing key")
    leaf = issue_certificate(signer, policy.names, now, policy.leaf_lifetime)
    _put(data, keys.TLS_CRT, keys.TLS_KEY, leaf)
