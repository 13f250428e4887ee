"""The custom resources as whole objects, as reflectors read them."""

from msgspec import Struct

from fairslice.kube.objects import ObjectMeta
from fairslice.v1alpha1 import API_VERSION
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec, TeamStatus

__all__ = [
    "MISSING",
    "POLICIES",
    "POLICY_NAME",
    "TEAMS",
    "SharingPolicyResource",
    "TeamResource",
]

POLICIES = f"/apis/{API_VERSION}/{SharingPolicySpec.plural}"
TEAMS = f"/apis/{API_VERSION}/{TeamSpec.plural}"
MISSING = "its CRD is not on this cluster: run `fairslice install`"
"""What reflectors of ours say then."""
POLICY_NAME = "default"
"""The name of the one policy that counts."""


class SharingPolicyResource(Struct, frozen=True, kw_only=True):
    """A `SharingPolicy`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SharingPolicySpec = SharingPolicySpec()


class TeamResource(Struct, frozen=True, kw_only=True):
    """A `Team`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TeamSpec = TeamSpec()
    status: TeamStatus = TeamStatus()
