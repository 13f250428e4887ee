"""Validation of Jobs, Deployments and their kin, and of the few other kinds that matter here.

Source: k8s.io/kubernetes/pkg/apis/{batch,apps,scheduling}/validation.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from .cel import CelError, compiles
from .errors import Cause
from .names import bad
from .pods import validate_template
from .selectors import matches_selector
from .store import Obj, clone

__all__ = ["validate_kind"]

Check = Callable[[Obj, Obj | None], Iterator[Cause]]

_IMMUTABLE = "field is immutable"


def validate_kind(key: str, new: Obj, old: Obj | None) -> Iterator[Cause]:
    """Check what a kind demands beyond metadata; `old` is what it replaces, if anything."""
    check = _CHECKS.get(key)
    if check is not None:
        yield from check(new, old)


def _required(field: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value{': ' + why if why else ''}", field)


def _fixed(field: str, value: Any) -> Cause:
    shown = json.dumps(value, separators=(",", ":"))
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {_IMMUTABLE}", field)


def _negative(spec: Obj, path: str, *fields: str) -> Iterator[Cause]:
    for field in fields:
        if isinstance(spec.get(field), int) and spec[field] < 0:
            yield bad(f"{path}.{field}", spec[field], "must be greater than or equal to 0")


def _job(new: Obj, old: Obj | None) -> Iterator[Cause]:
    spec = new["spec"]
    yield from _job_spec(spec, "spec")
    if old is None:
        return
    before = old["spec"]
    for field in (
        *("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex"),
        *("managedBy", "successPolicy"),
    ):
        if spec.get(field) != before.get(field):
            yield _fixed(f"spec.{field}", spec.get(field))
    if spec.get("completions") != before.get("completions"):
        elastic = spec.get("completionMode") == "Indexed" and (
            spec.get("completions") == spec.get("parallelism")
            and before.get("completions") == before.get("parallelism")
        )
        if not elastic:
            yield _fixed("spec.completions", spec.get("completions"))
    never_started = not old.get("status", {}).get("startTime")
    if not _same_template(
        before["template"], spec["template"], loose=bool(before.get("suspend")) and never_started
    ):
        yield _fixed("spec.template", spec["template"])


def _same_template(before: Obj, after: Obj, *, loose: bool) -> bool:
    """Compare; of a suspended Job that never started, resources and scheduling may differ.

    Resources as from Kubernetes 1.36 on, scheduling directives as before it: not once started.
    """
    if not loose or before == after:
        return before == after
    before, after = clone(before), clone(after)
    for template in (before, after):
        for field in ("labels", "annotations"):
            template["metadata"].pop(field, None)
        for field in ("nodeSelector", "tolerations", "schedulingGates"):
            template["spec"].pop(field, None)
        for field in ("containers", "initContainers"):
            for container in template["spec"].get(field) or ():
                container.pop("resources", None)
        affinity = template["spec"].get("affinity")
        if affinity is not None:
            affinity.pop("nodeAffinity", None)
            if not affinity:
                del template["spec"]["affinity"]
    return before == after


def _job_spec(spec: Obj, path: str) -> Iterator[Cause]:
    yield from _negative(
        spec, path, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds",
        "ttlSecondsAfterFinished", "backoffLimitPerIndex", "maxFailedIndexes",
    )  # fmt: skip
    yield from validate_template(spec["template"], f"{path}.template", "OnFailure", "Never")
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed", None):
        message = f'Unsupported value: "{mode}": supported values: "Indexed", "NonIndexed"'
        yield Cause("FieldValueNotSupported", message, f"{path}.completionMode")
    if mode == "Indexed" and "completions" not in spec:
        yield _required(f"{path}.completions", "when completion mode is Indexed")
    if "podFailurePolicy" in spec:
        if spec["template"]["spec"]["restartPolicy"] != "Never":
            policy = spec["template"]["spec"]["restartPolicy"]
            why = 'only "Never" is supported when podFailurePolicy is specified'
            yield bad(f"{path}.template.spec.restartPolicy", policy, why)
        replacement = spec.get("podReplacementPolicy")
        if replacement not in ("Failed", None):
            message = f'Unsupported value: "{replacement}": supported values: "Failed"'
            yield Cause("FieldValueNotSupported", message, f"{path}.podReplacementPolicy")
        yield from _failure_rules(spec["podFailurePolicy"], f"{path}.podFailurePolicy")


def _failure_rules(policy: Obj, path: str) -> Iterator[Cause]:
    for index, rule in enumerate(policy.get("rules", ())):
        where = f"{path}.rules[{index}]"
        action = rule.get("action", "")
        if action not in ("Ignore", "Count", "FailJob", "FailIndex"):
            supported = '"Count", "FailIndex", "FailJob", "Ignore"'
            message = f'Unsupported value: "{action}": supported values: {supported}'
            yield Cause("FieldValueNotSupported", message, f"{where}.action")
        given = ("onExitCodes" in rule) + bool(rule.get("onPodConditions"))
        if given == 0:
            why = "specifying one of OnExitCodes and OnPodConditions is required"
            yield bad(where, "", why)
        elif given == 2:
            yield bad(where, "", "specifying both OnExitCodes and OnPodConditions is not supported")


def _cron_job(new: Obj, old: Obj | None) -> Iterator[Cause]:
    spec = new["spec"]
    if not spec.get("schedule"):
        yield _required("spec.schedule")
    elif len(spec["schedule"].split()) != 5 and not spec["schedule"].startswith("@"):
        yield bad("spec.schedule", spec["schedule"], "expected exactly 5 fields")
    template = spec["jobTemplate"]["spec"]["template"]
    path = "spec.jobTemplate.spec.template"
    yield from validate_template(template, path, "OnFailure", "Never")


def _replicated(new: Obj, old: Obj | None) -> Iterator[Cause]:
    spec = new["spec"]
    yield from _negative(spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit")
    if not spec.get("selector"):
        yield _required("spec.selector")
    elif not matches_selector(spec["selector"], spec["template"]["metadata"].get("labels") or {}):
        labels = json.dumps(spec["template"]["metadata"].get("labels"), separators=(",", ":"))
        message = f"Invalid value: {labels}: `selector` does not match template `labels`"
        yield Cause("FieldValueInvalid", message, "spec.template.metadata.labels")
    if old is not None and spec.get("selector") != old["spec"].get("selector"):
        yield _fixed("spec.selector", spec.get("selector"))
    yield from validate_template(spec["template"], "spec.template", "Always")


_STATEFUL_MUTABLE = {
    *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"),
    *("persistentVolumeClaimRetentionPolicy", "minReadySeconds", "selector"),
}


def _stateful_set(new: Obj, old: Obj | None) -> Iterator[Cause]:
    yield from _replicated(new, old)
    if old is not None:
        kept = [
            {name: value for name, value in obj["spec"].items() if name not in _STATEFUL_MUTABLE}
            for obj in (old, new)
        ]
        if kept[0] != kept[1]:
            message = (
                "Forbidden: updates to statefulset spec for fields other than 'replicas', "
                "'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', "
                "'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
            )
            yield Cause("FieldValueForbidden", message, "spec")


def _priority_class(new: Obj, old: Obj | None) -> Iterator[Cause]:
    name = new["metadata"]["name"]
    if old is None:
        if name.startswith("system-") and not new["value"] >= 2_000_000_000:
            why = "priority class names with 'system-' prefix are reserved for system use only"
            yield Cause("FieldValueForbidden", f"Forbidden: {why}", "metadata.name")
        elif new["value"] > 1_000_000_000 and not name.startswith("system-"):
            why = "maximum allowed value of a user defined priority is 1000000000"
            yield Cause("FieldValueForbidden", f"Forbidden: {why}", "value")
        return
    for field in ("value", "preemptionPolicy"):
        if new.get(field) != old.get(field):
            yield Cause("FieldValueForbidden", "Forbidden: may not be changed in an update.", field)


def _role_binding(new: Obj, old: Obj | None) -> Iterator[Cause]:
    reference = new["roleRef"]
    if not reference.get("name"):
        yield _required("roleRef.name")
    if reference.get("kind") not in ("Role", "ClusterRole"):
        message = f'Unsupported value: "{reference.get("kind", "")}": supported values: '
        yield Cause("FieldValueNotSupported", message + '"ClusterRole", "Role"', "roleRef.kind")
    if old is not None and old["roleRef"] != reference:
        shown = json.dumps(reference, separators=(",", ":"))
        yield Cause("FieldValueInvalid", f"Invalid value: {shown}: cannot change roleRef",
                    "roleRef")  # fmt: skip


def _webhooks(new: Obj, old: Obj | None) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, webhook in enumerate(new.get("webhooks", ())):
        path = f"webhooks[{index}]"
        name = webhook.get("name", "")
        if len(name.split(".")) < 3:
            yield bad(f"{path}.name", name, "should be a domain with at least three segments "
                      "separated by dots")  # fmt: skip
        if name in seen:
            yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{path}.name")
        seen.add(name)
        if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            message = (
                f'Unsupported value: "{webhook.get("sideEffects", "")}": supported values: '
                '"None", "NoneOnDryRun"'
            )
            yield Cause("FieldValueNotSupported", message, f"{path}.sideEffects")
        if "v1" not in webhook.get("admissionReviewVersions", ()):
            yield _required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        config = webhook.get("clientConfig", {})
        if ("url" in config) == ("service" in config):
            yield _required(f"{path}.clientConfig", "exactly one of url or service is required")
        elif not config.get("url", "https://").startswith("https://"):
            why = "'https' is the only allowed URL scheme"
            yield bad(f"{path}.clientConfig.url", config["url"], why)
        if not 1 <= webhook["timeoutSeconds"] <= 30:
            why = "the timeout value must be between 1 and 30 seconds"
            yield bad(f"{path}.timeoutSeconds", webhook["timeoutSeconds"], why)
        yield from _match_conditions(webhook.get("matchConditions", ()), f"{path}.matchConditions")


def _match_conditions(conditions: Any, path: str) -> Iterator[Cause]:
    if len(conditions) > 64:
        message = f"Too many: {len(conditions)}: must have at most 64 items"
        yield Cause("FieldValueTooMany", message, path)
    for index, condition in enumerate(conditions):
        try:
            compiles(condition.get("expression", ""))
        except CelError as error:
            where = f"{path}[{index}].expression"
            yield bad(where, condition.get("expression", ""), f"compilation failed: {error}")


_CHECKS: dict[str, Check] = {
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "deployments.apps": _replicated,
    "replicasets.apps": _replicated,
    "daemonsets.apps": _replicated,
    "statefulsets.apps": _stateful_set,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "rolebindings.rbac.authorization.k8s.io": _role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_binding,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
}
