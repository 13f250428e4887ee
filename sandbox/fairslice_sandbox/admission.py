"""The admission chain: plugins, mutating webhooks, a second round, then validation.

Source: k8s.io/apiserver/pkg/admission/reinvocation.go, plugin/webhook/mutating.
"""

from collections.abc import Callable

from .attributes import Attributes
from .plugins import Plugins
from .store import Obj, Store, clone
from .webhooks import MUTATING, VALIDATING, Hook, WebhookCaller, find_hooks, validate_all

__all__ = ["Admission"]

Reread = Callable[[Attributes, Obj], Obj]
"""Decode and default an object again after a webhook patched it."""


class Admission:
    """Runs requests through the plugins and the registered webhooks."""

    def __init__(self, store: Store, caller: WebhookCaller, reread: Reread) -> None:
        self._store = store
        self._caller = caller
        self._reread = reread
        self.plugins = Plugins(store)

    async def mutate(self, request: Attributes) -> None:
        """Run the mutating phase: request.object becomes what it leaves. Raises ApiError."""
        self.plugins.admit(request)
        hooks = find_hooks(self._store, MUTATING, request)
        if not hooks:
            return
        called: set[str] = set()
        again: set[str] = set()
        changed = False
        for hook in hooks:
            was_called, has_changed = await self._call(request, hook)
            if has_changed:
                # Everyone before may want to see it; this hook only if a later one changes more.
                changed = True
                again |= called
                called = set()
            if was_called and hook.webhook.get("reinvocationPolicy") == "IfNeeded":
                called.add(hook.uid)
        if not changed:
            return
        output = request.object
        request.object = clone(output) if output is not None else None
        self.plugins.admit(request)
        if request.object != output:
            again |= called
        for hook in hooks:
            if hook.uid in again:
                await self._call(request, hook)

    async def _call(self, request: Attributes, hook: Hook) -> tuple[bool, bool]:
        before = request.object
        if not await self._caller.mutate(hook, request):
            return False, False
        if request.object is before or request.object is None:
            return True, False
        request.object = self._reread(request, request.object)
        return True, request.object != before

    async def validate(self, request: Attributes) -> None:
        """Run the validating phase. Raises ApiError."""
        hooks = find_hooks(self._store, VALIDATING, request)
        if hooks:
            await validate_all(self._caller, hooks, request)
        self.plugins.check_quota(request)
