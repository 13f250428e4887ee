"""Defaults of built-in kinds, as their decoding fills them in.

Source: k8s.io/kubernetes/pkg/apis/*/v1/defaults.go. Functions change the object they are given.
"""

import base64
from collections.abc import Callable
from typing import Any

from .store import Obj

__all__ = ["default_pod_template", "set_defaults"]


def set_defaults(key: str, obj: Obj) -> None:
    """Fill in the defaults of an object of the resource with this key."""
    fill = _DEFAULTS.get(key)
    if fill is not None:
        fill(obj)


def _put(target: Obj, **values: Any) -> None:
    for name, value in values.items():
        target.setdefault(name, value)


def _structs(obj: Obj) -> Obj:
    """Add what Go writes even if empty; gives the spec."""
    _put(obj, spec={}, status={})
    spec: Obj = obj["spec"]
    return spec


def _pod(pod: Obj) -> None:
    spec = _structs(pod)
    _pod_spec(spec)
    _put(spec, enableServiceLinks=True)
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        resources = container["resources"]
        if limits := resources.get("limits"):
            # A request that is there wins, even if it is not the limit.
            resources["requests"] = {**limits, **resources.get("requests", {})}
    if spec.get("hostNetwork"):
        for container in spec.get("containers", ()):
            for port in container.get("ports", ()):
                _put(port, hostPort=port["containerPort"])


def default_pod_template(template: Obj) -> None:
    """Fill in the defaults of a PodTemplateSpec; requests stay as they are."""
    _put(template, metadata={}, spec={})
    _pod_spec(template["spec"])


def _pod_spec(spec: Obj) -> None:
    _put(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
    )
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for name in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(name, ()):
            _container(container)
    for volume in spec.get("volumes", ()):
        _volume(volume)


def _container(container: Obj) -> None:
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    latest = tag in ("", "latest") and "@" not in image
    _put(
        container,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if latest else "IfNotPresent",
    )
    for port in container.get("ports", ()):
        _put(port, protocol="TCP")
    for variable in container.get("env", ()):
        if reference := variable.get("valueFrom", {}).get("fieldRef"):
            _put(reference, apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := container.get(name):
            _put(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1)
            _put(probe, failureThreshold=3)
            if request := probe.get("httpGet"):
                _put(request, path="/", scheme="HTTP")


def _volume(volume: Obj) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for name in ("configMap", "secret", "projected", "downwardAPI"):
        if source := volume.get(name):
            _put(source, defaultMode=420)
    if "hostPath" in volume:
        _put(volume["hostPath"], type="")
    for source in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in source:
            _put(source["serviceAccountToken"], expirationSeconds=3600)
        for item in source.get("downwardAPI", {}).get("items", ()):
            if "fieldRef" in item:
                _put(item["fieldRef"], apiVersion="v1")


def _job(job: Obj) -> None:
    spec = _structs(job)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    backoff = 2**31 - 1 if "backoffLimitPerIndex" in spec else 6
    _put(
        spec,
        parallelism=1,
        backoffLimit=backoff,
        completionMode="NonIndexed",
        suspend=False,
        manualSelector=False,
        podReplacementPolicy="Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed",
        template={},
    )
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        for pattern in rule.get("onPodConditions", ()):
            _put(pattern, status="True")
    default_pod_template(spec["template"])
    _labels_of_template(job)


def _labels_of_template(obj: Obj) -> None:
    labels = obj["spec"]["template"]["metadata"].get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _cron_job(cron: Obj) -> None:
    spec = _structs(cron)
    _put(spec, concurrencyPolicy="Allow", suspend=False)
    _put(spec, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1, jobTemplate={})
    _put(spec["jobTemplate"], metadata={}, spec={})
    _put(spec["jobTemplate"]["spec"], template={})
    default_pod_template(spec["jobTemplate"]["spec"]["template"])


def _template(obj: Obj) -> Obj:
    spec = _structs(obj)
    _put(spec, template={})
    default_pod_template(spec["template"])
    return spec


def _deployment(obj: Obj) -> None:
    spec = _template(obj)
    _put(spec, replicas=1, strategy={}, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec["strategy"]
    _put(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _put(strategy, rollingUpdate={})
        _put(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")


def _replica_set(obj: Obj) -> None:
    spec = _template(obj)
    _put(spec, replicas=1)
    _put(obj["status"], replicas=0)
    _labels_of_template(obj)


def _stateful_set(obj: Obj) -> None:
    spec = _template(obj)
    _put(spec, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
    _put(spec, updateStrategy={}, persistentVolumeClaimRetentionPolicy={})
    _put(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _put(spec["updateStrategy"], rollingUpdate={})
        _put(spec["updateStrategy"]["rollingUpdate"], partition=0)
    _put(spec["persistentVolumeClaimRetentionPolicy"], whenDeleted="Retain", whenScaled="Retain")
    _put(obj["status"], replicas=0, availableReplicas=0)


def _daemon_set(obj: Obj) -> None:
    spec = _template(obj)
    _put(spec, revisionHistoryLimit=10, updateStrategy={})
    _put(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _put(spec["updateStrategy"], rollingUpdate={})
        _put(spec["updateStrategy"]["rollingUpdate"], maxUnavailable=1, maxSurge=0)
    _put(obj["status"], currentNumberScheduled=0, numberMisscheduled=0)
    _put(obj["status"], desiredNumberScheduled=0, numberReady=0)


def _pod_template(obj: Obj) -> None:
    _put(obj, template={})
    default_pod_template(obj["template"])


def _namespace(obj: Obj) -> None:
    _structs(obj)
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get(
        "name", ""
    )


def _service(obj: Obj) -> None:
    spec = _structs(obj)
    _put(obj["status"], loadBalancer={})
    _put(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    for port in spec.get("ports", ()):
        _put(port, protocol="TCP", targetPort=port.get("port"))


def _node(obj: Obj) -> None:
    _structs(obj)
    if capacity := obj["status"].get("capacity"):
        _put(obj["status"], allocatable=dict(capacity))


def _secret(obj: Obj) -> None:
    _put(obj, type="Opaque")
    for name, value in obj.pop("stringData", {}).items():
        encoded = base64.b64encode(value.encode()).decode()
        obj.setdefault("data", {})[name] = encoded


def _webhooks(obj: Obj) -> None:
    mutating = obj.get("kind", "").startswith("Mutating")
    for webhook in obj.get("webhooks", ()):
        _put(webhook, failurePolicy="Fail", matchPolicy="Equivalent", timeoutSeconds=10)
        _put(webhook, namespaceSelector={}, objectSelector={})
        if mutating:
            _put(webhook, reinvocationPolicy="Never")
        if service := webhook.get("clientConfig", {}).get("service"):
            _put(service, port=443)
        for rule in webhook.get("rules", ()):
            _put(rule, scope="*")


def _crd(obj: Obj) -> None:
    spec = _structs(obj)
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    _put(names, singular=kind.lower(), listKind=kind + "List")
    _put(spec, conversion={"strategy": "None"})
    for version in spec.get("versions", ()):
        service = spec["conversion"].get("webhook", {}).get("clientConfig", {}).get("service")
        if service:
            _put(service, port=443)
        _put(version, served=True, storage=True)


def _binding(obj: Obj) -> None:
    _put(obj.setdefault("roleRef", {}), apiGroup="rbac.authorization.k8s.io")
    for subject in obj.get("subjects", ()):
        if subject.get("kind") != "ServiceAccount":
            _put(subject, apiGroup="rbac.authorization.k8s.io")


def _hpa(obj: Obj) -> None:
    _put(_structs(obj), minReplicas=1)


def _claim(obj: Obj) -> None:
    spec = _structs(obj)
    _put(spec, volumeMode="Filesystem")
    _put(obj["status"], phase="Pending")


_DEFAULTS: dict[str, Callable[[Obj], None]] = {
    "pods": _pod,
    "podtemplates": _pod_template,
    "namespaces": _namespace,
    "nodes": _node,
    "services": _service,
    "secrets": _secret,
    "persistentvolumeclaims": _claim,
    "replicationcontrollers": _replica_set,
    "resourcequotas": lambda obj: _put(obj, spec={}, status={}),
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "horizontalpodautoscalers.autoscaling": _hpa,
    "poddisruptionbudgets.policy": lambda obj: _put(obj, spec={}, status={}),
    "priorityclasses.scheduling.k8s.io": lambda obj: _put(
        obj, preemptionPolicy="PreemptLowerPriority", value=0
    ),
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "customresourcedefinitions.apiextensions.k8s.io": _crd,
}
