"""Two leaders, replicas and API servers, each at its own pace, any of them stopping anywhere.

Whatever they do, no API server ever meets a webhook that it can't verify.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.x509.verification import DNSName, PolicyBuilder, Store, VerificationError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairslice_certs.bundle import Certificates, encode, parse
from fairslice_certs.rotation import Action, CertificatePolicy, next_step, perform
from fairslice_certs.secret import read_secret

from .world import HOST, NAMES

POLICY = CertificatePolicy(
    NAMES,
    authority_lifetime=timedelta(days=40),
    leaf_lifetime=timedelta(days=15),
    settle=timedelta(seconds=30),
)
WATCH_LAG = timedelta(seconds=20)
CONFIGURATIONS = 2
WHO = st.integers(0, 1)


@dataclass
class Configuration:
    """A webhook configuration with one entry, and its resourceVersion."""

    bundle: bytes = b""
    version: int = 0


@dataclass
class ApiServer:
    """What one API server's informer last saw of the configurations."""

    bundles: list[bytes]
    seen: datetime


@dataclass
class Leader:
    """Somebody who believes to be the leader, part of the way through one step."""

    configurations: list[tuple[bytes, int]] | None = None
    serials: frozenset[int] | None = None
    secret: tuple[dict[str, bytes], int] | None = None
    todo: list[int] = field(default_factory=list)
    bundle: bytes = b""


def verifies(bundle: bytes, chain: Certificates, now: datetime) -> bool:
    """Judge with a verifier that shares no code with what is tested."""
    anchors = x509.load_pem_x509_certificates(bundle) if bundle else []
    if not anchors:
        return False
    verifier = PolicyBuilder().store(Store(anchors)).time(now).build_server_verifier(DNSName(HOST))
    try:
        verifier.verify(chain[0], list(chain[1:]))
    except VerificationError:
        return False
    return True


class Cluster(RuleBasedStateMachine):
    """The model; rules named after who acts."""

    @initialize(probes=st.booleans(), age=st.sampled_from([0, 1, 14, 24, 27, 40]))
    def install(self, probes: bool, age: int) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.probes = probes
        self.secret: dict[str, bytes] = {}
        self.version = 0
        self.configurations = [Configuration() for _ in range(CONFIGURATIONS)]
        self.api_servers = [ApiServer([b""] * CONFIGURATIONS, self.now) for _ in range(2)]
        self.replicas: list[Certificates] = [(), ()]
        self.leaders = [Leader(), Leader()]
        self.quiet_days_pass(age)

    @rule(who=WHO)
    def leader_reads_configurations(self, who: int) -> None:
        self.leaders[who] = Leader([(each.bundle, each.version) for each in self.configurations])

    @rule(who=WHO)
    def leader_sees_what_is_served(self, who: int) -> None:
        served = frozenset(chain[0].serial_number for chain in self.replicas if chain)
        self.leaders[who].serials = served if self.probes else None

    @precondition(lambda self: any(each.configurations for each in self.leaders))
    @rule(who=WHO)
    def leader_reads_the_secret(self, who: int) -> None:
        if self.leaders[who].configurations is not None:
            self.leaders[who].secret = (dict(self.secret), self.version)

    @precondition(lambda self: any(each.secret for each in self.leaders))
    @rule(who=WHO)
    def leader_decides_and_writes(self, who: int) -> None:
        leader = self.leaders[who]
        if leader.secret is not None:
            self._decide(leader)

    @precondition(lambda self: any(each.todo for each in self.leaders))
    @rule(who=WHO)
    def leader_patches_one_configuration(self, who: int) -> None:
        leader = self.leaders[who]
        if leader.todo and leader.configurations:
            index = leader.todo.pop()
            target = self.configurations[index]
            if leader.configurations[index][1] == target.version:
                target.bundle, target.version = leader.bundle, target.version + 1

    @rule(who=WHO)
    def leader_crashes(self, who: int) -> None:
        self.leaders[who] = Leader()

    @rule(who=WHO)
    def replica_loads(self, who: int) -> None:
        chain = read_secret(self.secret).chain
        if not chain:
            return
        # One that starts gets no traffic before it is ready.
        ready = all(verifies(each, chain, self.now) for each in self._seen())
        if self.replicas[who] or ready:
            self.replicas[who] = chain

    @rule(who=WHO)
    def replica_crashes(self, who: int) -> None:
        self.replicas[who] = ()

    @rule(who=WHO)
    def api_server_hears_of_changes(self, who: int) -> None:
        bundles = [each.bundle for each in self.configurations]
        self.api_servers[who] = ApiServer(bundles, self.now)

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for who, server in enumerate(self.api_servers):
            if self.now - server.seen >= WATCH_LAG:
                self.api_server_hears_of_changes(who)

    @rule()
    def somebody_empties_the_secret(self) -> None:
        self.secret, self.version = {}, self.version + 1
        self.leaders = [Leader(), Leader()]

    @rule(key=st.sampled_from(["ca.key", "ca.crt", "tls.key", "tls.crt", "ca-next.key"]))
    def somebody_breaks_the_secret(self, key: str) -> None:
        if key in self.secret:
            self.secret = {**self.secret, key: b"-----BEGIN"}
            self.version += 1
            self.leaders = [Leader(), Leader()]

    @rule()
    def let_everyone_finish(self) -> None:
        quiet = 0
        for _ in range(25):
            actions = [action for who in range(2) for action in self._look_and_load(who)]
            self.time_passes(10)
            self.every_api_server_can_verify_every_replica()
            quiet = quiet + 1 if set(actions) == {Action.WAIT} else 0
            if quiet == 4:  # longer than `settle`
                break
        else:
            raise AssertionError(f"still busy: {actions}")
        assert all(self.replicas)
        if self.probes:
            assert not any(key.startswith("ca-next") for key in self.secret)
            assert all(each.bundle == self.secret["ca.crt"] for each in self.configurations)

    @rule(days=st.integers(1, 14))
    def quiet_days_pass(self, days: int) -> None:
        self.let_everyone_finish()
        for jump in [3] * (days // 3) + [days % 3]:
            self.let_everyone_finish()
            self.now += timedelta(days=jump)
            self.time_passes(1)
            self.every_api_server_can_verify_every_replica()

    @invariant()
    def every_api_server_can_verify_every_replica(self) -> None:
        for bundle in self._seen():
            for chain in filter(None, set(self.replicas)):
                assert verifies(bundle, chain, self.now)

    def _seen(self) -> set[bytes]:
        return {bundle for server in self.api_servers for bundle in server.bundles}

    def _look_and_load(self, who: int) -> list[Action]:
        actions: list[Action] = []
        while not actions or actions[-1] is not Action.WAIT:
            assert len(actions) < 10
            self.leader_reads_configurations(who)
            self.leader_sees_what_is_served(who)
            self.leader_reads_the_secret(who)
            actions.append(self._decide(self.leaders[who]))
            while self.leaders[who].todo:
                self.leader_patches_one_configuration(who)
        self.replica_loads(who)
        return actions

    def _decide(self, leader: Leader) -> Action:
        assert leader.configurations is not None
        assert leader.secret is not None
        data, version = leader.secret
        published = [bundle for bundle, _ in leader.configurations]
        step = next_step(data, published, leader.serials, self.now, POLICY)
        leader.secret = None
        if step.action is Action.PUBLISH:
            leader.bundle = encode(step.bundle)
            leader.todo = [
                index
                for index, bundle in enumerate(published)
                if frozenset(parse(bundle)) != frozenset(step.bundle)
            ]
        elif step.action.writes_secret and version == self.version:
            self.secret = perform(step, data, self.now, POLICY)
            self.version += 1
        return step.action


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
