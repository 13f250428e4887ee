"""Keeps certificates good: the leader writes the Secret and the caBundles, everyone loads.

One look a minute by the wall clock, never one long sleep: the monotonic clock that sleeps
are measured with stops while a machine is suspended. Whatever doesn't answer is asked again
at the next look, and what is loaded stays in use meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from .bundle import encode
from .inject import (
    ConfigurationRef,
    WebhookConfiguration,
    WebhookConfigurations,
    publish,
    untrusting_entries,
)
from .replicas import Replicas
from .rotation import Action, CertificatePolicy, Step, next_step, perform
from .secret import (
    TLS_CRT,
    TLS_KEY,
    AlreadyExistsError,
    CertificateSecret,
    ConflictError,
    Owner,
    SecretData,
    SecretStore,
    StoredSecret,
    UnavailableError,
    read_secret,
)
from .serving import CertificateUnusableError, ServingContext

__all__ = ["CertificateRotator", "CertificateStatus", "Clock", "WallClock"]

log = logging.getLogger(__name__)

_MAX_STEPS = 10
"""Steps taken at one look; a whole rotation has six, the rest is for conflicts."""


class Clock(Protocol):
    """Time, as far as the rotator needs it."""

    def now(self) -> datetime:
        """Return the wall-clock time (with a zone)."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class WallClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class CertificateStatus:
    """Where this replica stands; for readiness, metrics and the status page.

    `untrusting` names webhook entries whose caBundle does not fit what this replica serves,
    `missing` the configurations that do not exist, `problem` what is wrong with the Secret.
    `ca_bundle` (PEM) is what to register a webhook with at the moment.
    """

    serial: int | None = None
    not_after: datetime | None = None
    untrusting: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    problem: str = ""
    ca_bundle: bytes = field(default=b"", repr=False)

    @property
    def is_ready(self) -> bool:
        """A certificate is loaded, and every webhook entry that exists trusts it."""
        return self.serial is not None and not self.untrusting


@dataclass(kw_only=True, eq=False)
class CertificateRotator:
    """Rotates, publishes and loads; run one in every replica.

    `is_leader` says whether this process may write at the moment. `interval`, `hurry` (the
    same while not ready) and `time_limit` (of each call) are in seconds. `status` is what the
    last look found.
    """

    store: SecretStore
    configurations: WebhookConfigurations
    references: Sequence[ConfigurationRef]
    replicas: Replicas
    serving: ServingContext
    policy: CertificatePolicy
    is_leader: Callable[[], bool]
    clock: Clock = field(default_factory=WallClock)
    interval: float = 60.0
    hurry: float = 2.0
    time_limit: float = 10.0
    status: CertificateStatus = field(default=CertificateStatus(), init=False)
    _said: str = field(default="", init=False, repr=False)

    async def run(self) -> None:
        """Look once a minute, forever; more often while not ready."""
        while True:
            await self.look()
            await self.clock.sleep(self.interval if self.status.is_ready else self.hurry)

    async def look(self) -> None:
        """Take the steps that are due if this is the leader, then load what is there."""
        if self.is_leader():
            await self._try(self._advance)
        await self._try(self._load)

    async def _try(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except (UnavailableError, TimeoutError) as error:
            self._say(logging.WARNING, f"certificates: {str(error) or 'a call took too long'}")

    async def _advance(self) -> None:
        for _ in range(_MAX_STEPS):
            try:
                step = await self._take_step()
            except (AlreadyExistsError, ConflictError):
                continue  # Somebody else was faster: what is there now counts.
            if step.action in (Action.WAIT, Action.HANDS_OFF):
                return
            # The next step may depend on this replica serving what was just issued.
            await self._load()
        self._say(logging.WARNING, "certificates: no progress; others keep changing things")

    async def _take_step(self) -> Step:
        # Configurations before the Secret: see next_step.
        found = await self._configurations()
        async with asyncio.timeout(self.time_limit):
            serials = await self.replicas.serials()
        stored = await self._secret()
        data, now = (stored.data if stored else {}), self.clock.now()
        step = next_step(data, _published(found), serials, now, self.policy)
        self._announce(step)
        if step.action is Action.PUBLISH:
            await publish(self.configurations, found, step.bundle, time_limit=self.time_limit)
        elif step.action.writes_secret:
            after = perform(step, data, now, self.policy)
            async with asyncio.timeout(self.time_limit):
                if stored:
                    await self.store.replace(after, stored.version)
                else:
                    await self.store.create(after)
        return step

    async def _load(self) -> None:
        found = await self._configurations()
        stored = await self._secret()
        data = stored.data if stored else {}
        secret = read_secret(data)
        problem = "; ".join(secret.problems)
        if secret.chain and self._may_serve(secret, found):
            try:
                self._serve(data)
            except CertificateUnusableError as error:
                problem = str(error)
                self._say(logging.ERROR, f"certificates: {error}")
        self.status = self._observe(data, secret, found, problem)

    def _may_serve(self, secret: CertificateSecret, found: Sequence[WebhookConfiguration]) -> bool:
        """Keep a good certificate until the caBundles trust the one that follows it."""
        served, now = self.serving.served, self.clock.now()
        if served is None:
            return True
        if served.chain == secret.chain:
            return False
        if served.not_after <= now or _trust_is_elsewhere(secret):
            return True
        return not untrusting_entries(found, secret.chain)

    def _serve(self, data: SecretData) -> None:
        loaded = self.serving.load(data[TLS_CRT], data[TLS_KEY])
        expiry = loaded.not_after.isoformat()
        log.info("certificates: serving serial %x, good until %s", loaded.serial, expiry)

    def _observe(
        self,
        data: SecretData,
        secret: CertificateSecret,
        found: Sequence[WebhookConfiguration],
        problem: str,
    ) -> CertificateStatus:
        served = self.serving.served
        chain = served.chain if served and not _trust_is_elsewhere(secret) else ()
        here = {each.ref for each in found}
        now = self.clock.now()
        wanted = next_step(data, _published(found), None, now, self.policy).bundle
        if served and served.not_after <= now:
            problem = problem or "the certificate has expired"
        return CertificateStatus(
            serial=served.serial if served else None,
            not_after=served.not_after if served else None,
            untrusting=untrusting_entries(found, chain) if chain else (),
            missing=tuple(ref.name for ref in self.references if ref not in here),
            problem=problem,
            ca_bundle=encode(wanted),
        )

    async def _configurations(self) -> list[WebhookConfiguration]:
        found = []
        for ref in self.references:
            async with asyncio.timeout(self.time_limit):
                if configuration := await self.configurations.get(ref):
                    found.append(configuration)
        return found

    async def _secret(self) -> StoredSecret | None:
        async with asyncio.timeout(self.time_limit):
            return await self.store.get()

    def _announce(self, step: Step) -> None:
        is_odd = step.repairs or step.action is Action.HANDS_OFF
        level = logging.WARNING if is_odd else logging.INFO
        verb = "repairing the Secret: " if step.repairs else ""
        self._say(level, f"certificates: {verb}{step.action.value} ({step.reason})")

    def _say(self, level: int, message: str) -> None:
        """Log what is new; the same finding every minute would bury everything else."""
        if message != self._said:
            log.log(level, "%s", message)
        self._said = message


def _published(found: Sequence[WebhookConfiguration]) -> list[bytes]:
    return [pem for each in found if not each.injected_by_others for pem in each.ca_bundles]


def _trust_is_elsewhere(secret: CertificateSecret) -> bool:
    """A user's certificate without any authority: clients verify it by their own means."""
    return secret.owner is Owner.USER and not secret.authorities
