"""The catalogue of messages, made from the functions that word them.

`python -m fairslice.message_catalogue` writes docs/messages.md: what appears when, with an
example of each text.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fairslice import messages

__all__ = ["Entry", "entries", "render"]

_SECTIONS = (
    ("Deny", "Denials", "The object was refused. `kubectl` shows the text as an error."),
    ("Warn", "Warnings", "The object was accepted. `kubectl` shows the text as a warning."),
    (
        "Wait",
        "Reasons for waiting",
        "Part of the line that says where work stands: in `kubectl describe`, in the annotation "
        "`system.fairslice.io/status` and in the queue's status.",
    ),
    ("", "Other lines", "What victims of preemption are told, and parts of longer lines."),
)
_NO_MESSAGE = {"line", "listed"}

# Examples by parameter name; a parameter that isn't here gets one by its type.
_BY_NAME: dict[str, Any] = {
    "allowed": ("training", "experiment"),
    "amount": 2000,
    "asked": 2000,
    "beneficiary": "Deployment cv/serve",
    "cause": "limit",
    "container": "main",
    "count": 2,
    "description": "mig-1g.10gb: hardware-isolated slice of an NVIDIA A100 SXM4 80GB, 10 GB",
    "exists": ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
    "first": "nvidia.com/gpu",
    "fits": 2,
    "fitting": 2,
    "held": 1,
    "key": "cdi.k8s.io/gpu",
    "kind": "Job",
    "known": ("production", "training", "experiment"),
    "limit": 4000,
    "lost_seconds": 754.0,
    "namespace": "sandbox",
    "new": "fairslice-training",
    "node": "gpu-node-1",
    "old": "high",
    "path": "/dev/nvidia0",
    "place": 3,
    "priority_class": "fairslice-production",
    "pods": 4,
    "queued": 12,
    "reason": "waits for 1 × mig-1g.10gb",
    "replicas": 5,
    "resource": "nvidia.com/gpu",
    "seconds": 40.0,
    "source": "label fairslice.io/class",
    "subject": "a100",
    "team": "nlp",
    "until": "14:20:00 UTC",
    "used": 3500,
    "value": "0.5",
    "victim_class": "experiment",
    "waits": "let it wait in line with the label fairslice.io/class: training",
    "what": "1 × mig-1g.10gb",
    "work_class": "production",
    "workload": "Job segmentation",
}
# Where a name means another thing in one message.
_BY_MESSAGE: dict[tuple[str, str], Any] = {
    ("ask_disagrees", "limit"): "2",
    ("ask_disagrees", "request"): "1",
    ("ask_memory_containers", "value"): "18Gi",
    ("ask_memory_malformed", "value"): "18 gigs",
    ("ask_mistyped", "resource"): "nvidia.com/mig-1g10gb",
    ("ask_negative", "value"): "-1",
    ("ask_not_a_number", "value"): "one",
    ("ask_refused", "exists"): ("gpu (A100-SXM4-80GB)", "mig-1g.10gb (A100-SXM4-80GB)"),
    ("ask_refused", "problem"): messages.ask_negative("main", "nvidia.com/gpu", "-1"),
    ("ask_requests_only", "value"): "1",
    ("ask_several_replicas", "resource"): "nvidia.com/gpu.shared",
    ("ask_several_replicas", "value"): "2",
    ("ask_too_many", "value"): "1e12",
    ("ask_two_kinds", "second"): "nvidia.com/mig-1g.10gb",
    ("ask_template_unseen", "name"): "one-gpu",
    ("audit", "text"): messages.queued("waits for 1 × mig-1g.10gb"),
    ("budget_exhausted", "budget"): "2000 GPU-hours a month",
    ("budget_exhausted", "until"): "2026-12-01 00:00 CET",
    ("changed_after_admission", "what"): "nvidia.com/gpu is not what was booked",
    ("expected_start", "reason"): "waits for room: no node in service has 8 GPUs free",
    ("expected_start", "until"): "2026-11-30 14:20 CET",
    ("failed_to_start", "reason"): "0/9 nodes are available",
    ("fit_elsewhere", "product"): "NVIDIA-A100-SXM4-80GB",
    ("fit_elsewhere", "resource"): "nvidia.com/mig-1g.10gb",
    ("fit_gang", "fit"): 3,
    ("fit_kept_off", "nodes"): 4,
    ("fit_kept_off", "why"): "nodeSelector zone=b",
    ("fit_scarce", "free"): "12",
    ("fit_scarce", "needed"): "16",
    ("fit_scarce", "what"): "cpu",
    ("group_disagrees", "name"): "eval",
    ("group_disagrees", "sizes"): (3, 4),
    ("group_incomplete", "name"): "eval",
    ("group_incomplete", "present"): 2,
    ("group_incomplete", "size"): 4,
    ("group_mixed", "name"): "eval",
    ("guard_admin_access", "name"): "gpu",
    ("guard_device_mount", "path"): "/var/run/nvidia-container-devices/0",
    ("guard_host_namespace", "field"): "hostPID",
    ("guard_host_path", "path"): "/dev",
    ("guard_host_path", "volume"): "devices",
    ("guard_privileged", "what"): "privileged",
    ("guarantee_kept", "free"): 2000,
    ("guarantee_kept", "kept"): 2000,
    ("guarantee_kept", "pool"): "a100",
    ("hidden", "what"): ("main: NVIDIA_VISIBLE_DEVICES",),
    ("lending_checked", "pool"): "a100",
    ("mark_checked", "marks"): "fairslice.io/pin",
    ("mark_counts", "mark"): "order",
    ("mark_counts", "user"): "anna",
    ("mark_counts", "value"): "-1",
    ("mark_refused", "mark"): "pin",
    ("mark_refused", "user"): "ben",
    ("max_runtime_over", "limit"): 43_200,
    ("max_runtime_over", "until"): "2026-11-30 14:20 CET",
    ("max_runtime_set", "limit"): 43_200,
    ("lint_memory_fraction", "what"): "1 of 4 time-slices of a Tesla T4: no memory isolation",
    ("lint_processes", "count"): 8,
    ("lint_processes", "flag"): "--nproc_per_node",
    ("lint_several_slices", "resource"): "nvidia.com/mig-1g.10gb",
    ("lint_visible_devices", "value"): "0,1",
    ("never_fits_cap", "asked"): 8000,
    ("never_fits_capacity", "have"): 7,
    ("never_fits_capacity", "pods"): 16,
    ("never_fits_capacity", "fits"): 7,
    ("never_fits_capacity", "what"): "mig-1g.10gb",
    ("option_missing", "asked"): "nvidia.com/mig-7g.79gb",
    ("option_missing", "exists"): ("gpu (A100-SXM4-80GB)", "mig-1g.10gb (A100-SXM4-80GB)"),
    ("option_missing", "why"): "no node advertises it",
    ("order_user", "first"): 1000,
    ("order_user", "second"): 3000,
    ("pod_group_size", "most"): 1000,
    ("pod_group_size", "name"): "eval",
    ("pod_group_size", "text"): "four",
    ("pool_unknown", "pools"): ("a100", "t4"),
    ("pool_unknown", "unknown"): ("a1000",),
    ("pools_gone", "gone"): ("a1000",),
    ("pools_gone", "teams"): ("nlp", "cv"),
    ("cron_run_skipped", "job"): "sweep-29384700",
    ("preempted", "rule"): messages.rule_quota_cut("cv", "a100", 6000, 4000),
    ("preempted_by", "rule"): messages.rule_class("production", "experiment"),
    ("priority_class_missing", "name"): "fairslice-training",
    ("pushed_out_by_others", "reason"): "PreemptionByScheduler",
    ("queued", "why"): "waits for 1 × mig-1g.10gb",
    ("replicas_would_wait", "why"): "team nlp's a100 limit: 4 of 4 GPUs in use, 1 asked",
    ("request_kept", "amount"): "500m",
    ("request_kept", "asked"): "nvidia.com/gpu",
    ("request_kept", "given"): "nvidia.com/mig-3g.40gb",
    ("resource_invalid", "kind"): "Team",
    ("resource_invalid", "why"): "spec.pools[0].limit: 2 is below guaranteed 4",
    ("rule_quota_cut", "held"): 6000,
    ("rule_quota_cut", "pool"): "a100",
    ("too_many", "most"): 1024,
    ("too_many", "way_out"): "make it several",
    ("too_many", "what"): "containers",
    ("too_many_submissions", "limit"): 200,
    ("urgent_granted", "left"): 2,
    ("urgent_granted", "per_week"): 3,
    ("urgent_granted", "until"): "2026-12-07 00:00 CET",
    ("urgent_granted", "user"): "anna",
    ("urgent_spent", "per_week"): 3,
    ("urgent_spent", "until"): "2026-12-07 00:00 CET",
    ("watcher_blinded", "account"): "dcgm-exporter",
    ("watcher_blinded", "container"): "exporter",
    ("watcher_blinded", "namespace"): "monitoring",
    ("waits_for_room", "reason"): "no node in service offers nvidia.com/gpu of Tesla-T4",
    ("waits_for_victims", "reason"): "2 to go",
    ("waits_for_window", "asked"): 8000,
    ("waits_for_window", "pool"): "a100",
    ("waits_for_window", "until"): "2026-11-30 20:00 CET",
}


class Entry(NamedTuple):
    """One message: its function's name, the verb and text of its docstring, an example."""

    name: str
    verb: str
    when: str
    example: str


def entries() -> Iterator[Entry]:
    """List all messages, by name."""
    for name, function in sorted(inspect.getmembers(messages, inspect.isfunction)):
        if name in _NO_MESSAGE:
            continue
        doc = " ".join((inspect.getdoc(function) or "").split())
        verb, colon, rest = doc.partition(": ")
        if not colon or verb not in ("Deny", "Warn", "Wait"):
            verb, rest = "", doc
        yield Entry(name, verb, _capitalized(rest), _example(name, function))


def render() -> str:
    """Write the catalogue as Markdown."""
    known = list(entries())
    parts = [
        "<!-- Generated by `python -m fairslice.message_catalogue`; don't edit. -->",
        "# Messages",
        "Everything fairslice says to people, with an example of each. A message is one line of "
        f"at most {messages.MAX_LENGTH} characters. What to do about one: "
        "[troubleshooting](troubleshooting.md).",
    ]
    for verb, title, about in _SECTIONS:
        parts += [f"## {title}", about]
        for entry in known:
            if entry.verb == verb:
                parts += [f"### {entry.name}", entry.when, f"```text\n{entry.example}\n```"]
    return "\n\n".join(parts) + "\n"


def _capitalized(text: str) -> str:
    # Names of fields, such as envFrom, stay as they are.
    word = text.partition(" ")[0]
    return text if word != word.lower() else text[:1].upper() + text[1:]


def _example(name: str, function: Callable[..., str]) -> str:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    values = {item.name: _value(name, item) for item in parameters}
    return function(**values)


def _value(message: str, parameter: inspect.Parameter) -> Any:
    name = parameter.name
    if (message, name) in _BY_MESSAGE:
        return _BY_MESSAGE[message, name]
    if name in _BY_NAME and _suits(_BY_NAME[name], parameter.annotation):
        return _BY_NAME[name]
    if parameter.annotation in (int, float):
        return parameter.annotation(2)
    return f"‹{name}›" if parameter.annotation is str else (f"‹{name}›",)


def _suits(value: object, annotation: object) -> bool:
    if isinstance(annotation, type) and annotation in (int, float, str):
        return isinstance(value, annotation)
    return isinstance(value, tuple)


def main() -> None:
    """Write docs/messages.md below the directory given, or here."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    (root / "docs/messages.md").write_text(render())


if __name__ == "__main__":
    main()
