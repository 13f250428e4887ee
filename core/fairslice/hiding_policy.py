"""Hiding inside the API server: a MutatingAdmissionPolicy for pods without GPUs.

From Kubernetes 1.36 on it stands in for the webhook's `hide` entry and does what
`fairslice_webhook.hiding` does to such pods. It matches exactly the pods that the `gpu` entries
don't. Elements of lists are written as map literals: a list of `Object{}` makes the API server
panic. Source: KEP-3962.
"""

from typing import Any

from fairslice import match_conditions as cel
from fairslice.hidden_env import (
    ALWAYS_HIDDEN,
    MPS_PREFIX,
    RUNTIME_CLASS_PREFIX,
    VISIBLE_DEVICES,
    VOID,
)
from fairslice.policy import Policy
from fairslice.webhook_configuration import Target

__all__ = ["HIDING_POLICY", "hiding_binding", "hiding_policy"]

HIDING_POLICY = "fairslice-hide"
"""Name of the policy and of its binding."""

_API_VERSION = "admissionregistration.k8s.io/v1"


def hiding_policy(target: Target, policy: Policy) -> dict[str, Any]:
    """Make the MutatingAdmissionPolicy for a sharing policy that enforces hiding."""
    conditions = {
        "changed": _CHANGED,
        "not-asking": cel.not_asking(target.resources, hidden_in_process=True),
        "not-mirrored": cel.not_mirrored(),
    }
    if policy.exempt:
        conditions["not-exempt"] = cel.not_exempt(policy.exempt)
    hidden = sorted({*ALWAYS_HIDDEN, *policy.hiding.extra_env} - {VISIBLE_DEVICES})
    spec = {
        # As the webhook's entry: what goes wrong in here must not stop pods without GPUs.
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": target.namespace_selector(),
            "objectSelector": {},
            "resourceRules": [
                _rule("pods", "CREATE", "UPDATE"),
                _rule("pods/ephemeralcontainers", "UPDATE"),
            ],
        },
        "matchConditions": [
            {"name": name, "expression": text} for name, text in conditions.items()
        ],
        "variables": [
            # In a map, a name is found at one price however many there are.
            {
                "name": "hidden",
                "expression": f"{{{', '.join(f'{cel.text(name)}: true' for name in hidden)}}}",
            },
            {
                "name": "known",
                "expression": (
                    "oldObject == null ? [] : "
                    "oldObject.?spec.?ephemeralContainers.orValue([]).map(c, c.name)"
                ),
            },
        ],
        # One for all: the API server writes the whole pod out and reads it in for each.
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _changes()}}],
    }
    return {
        "apiVersion": _API_VERSION,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": HIDING_POLICY},
        "spec": spec,
    }


def hiding_binding() -> dict[str, Any]:
    """Make the binding that puts the policy into force."""
    return {
        "apiVersion": _API_VERSION,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": HIDING_POLICY},
        "spec": {"policyName": HIDING_POLICY},
    }


_ADDING = "request.?subResource.orValue('') == 'ephemeralcontainers'"
# No update may change what is hidden here. Where it was hidden before, only a manifest that is
# applied again can bring it back.
_CHANGED = f"request.operation == 'CREATE' || {_ADDING} || object.spec != oldObject.spec"

_VOID = f"{{'name': '{VISIBLE_DEVICES}', 'value': '{VOID}'}}"

# With an overhead, the API server would miss the runtime class that accounts for it.
_RUNTIME_CLASS = (
    f"object.spec.?runtimeClassName.orValue('').startsWith('{RUNTIME_CLASS_PREFIX}')"
    " && !has(object.spec.overhead)"
    " ? [JSONPatch{op: 'remove', path: '/spec/runtimeClassName'}] : []"
)


def _rule(resource: str, *operations: str) -> dict[str, Any]:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": [resource],
        "scope": "*",
    }


def _changes() -> str:
    created = " + ".join((_hide("containers"), _hide("initContainers"), f"({_RUNTIME_CLASS})"))
    # Ephemeral containers can't be changed once they are there.
    added = _hide("ephemeralContainers", "!(c.name in variables.known)")
    again = f"request.operation == 'CREATE' || ({_was_hidden()})"
    return f"{_ADDING} ? {added} : ({again} ? {created} : [])"


def _was_hidden() -> str:
    lists = [f"oldObject.spec.?{name}.orValue([])" for name in ("containers", "initContainers")]
    hidden = [f"{each}.all(c, {_is_hidden('c.?env.orValue([])')})" for each in lists]
    runtime_class = (
        f"!oldObject.spec.?runtimeClassName.orValue('').startsWith('{RUNTIME_CLASS_PREFIX}')"
    )
    return " && ".join((*hidden, runtime_class))


def _hide(field: str, only: str = "") -> str:
    """Give each container of a list the environment it should have, where it differs."""
    containers = f"object.spec.?{field}.orValue([])"
    changed = f"!({_is_hidden('c.?env.orValue([])')})"
    wanted = f"{only} && {changed}" if only else changed
    env = f"{containers}[n].?env.orValue([])"
    patch = f"JSONPatch{{op: 'add', path: '/spec/{field}/' + string(n) + '/env', value: "
    return (
        f"lists.range(size({containers}))"
        f".filter(n, [{containers}[n]].all(c, {wanted}))"
        f".map(n, {patch}{_without_gpus(env)}}})"
    )


def _hides(name: str) -> str:
    return f"({name} in variables.hidden || {name}.startsWith('{MPS_PREFIX}'))"


def _is_hidden(env: str) -> str:
    """Say whether the one variable in question is `NVIDIA_VISIBLE_DEVICES=void`."""
    void = f"e.name == '{VISIBLE_DEVICES}' && e.?value.orValue('') == '{VOID}'"
    return (
        f"size({env}.filter(e, e.name == '{VISIBLE_DEVICES}' || {_hides('e.name')})) == 1"
        f" && {env}.exists(e, {void} && !has(e.valueFrom))"
    )


def _without_gpus(env: str) -> str:
    """Put `void` where the variable stood first, or last; leave out the others."""
    names = f"{env}.map(e, string(e.name))"
    kept = f"!{_hides('name')} && (name != '{VISIBLE_DEVICES}' || i == first)"
    rest = (
        f"lists.range(size({env})).filter(i, [{env}[i].name].all(name, {kept}))"
        f".map(i, i == first ? dyn({_VOID}) : {env}[i])"
    )
    # A list of one binds a name; the API server's CEL has no other way.
    return (
        f"[{names}.indexOf('{VISIBLE_DEVICES}')]"
        f".map(first, {rest} + (first < 0 ? [dyn({_VOID})] : []))[0]"
    )
