"""Habits that sharing breaks, told at once rather than by a crash an hour later.

A warning is given only where the work was given something on which the habit breaks. Sources:
CUDA's environment variables; NVIDIA's MIG guide (a process sees one MIG device); the options of
torchrun, DeepSpeed, Lightning, vLLM, SGLang and TGI.
"""

import re
from collections.abc import Iterator, Mapping

from fairslice import messages
from fairslice.booking import Option
from fairslice.kube.objects import Container, PodSpec
from fairslice.options import describe
from fairslice.requests import ContainerAsk, ContainerKind, PodAsk
from fairslice.v1alpha1.policy import SharingMode

__all__ = ["lints"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_REPLICAS = (SharingMode.TIMESLICE.value, SharingMode.MPS.value)

# One for each GPU: processes, or shards of a model.
_PER_GPU = re.compile(
    r"(?:^|[\s;&|(])(?P<flag>--?(?:nproc[_-]per[_-]node|tensor[_-]parallel[_-]size|tp[_-]size|tp"
    r"|num[_-]gpus|num[_-]shard|ngpus|gpus))(?:[ =]+)(?P<count>\d{1,4})(?![\w.,-])",
    re.ASCII,
)
_MEMORY_FRACTION = re.compile(
    r"(?:^|\s)--(?:gpu[_-]memory[_-]utilization|mem[_-]fraction[_-]static)(?:[ =]+)[\d.]+",
    re.ASCII,
)
_VLLM = re.compile(r"(?:^|[\s/])vllm(?:[\s/:.-]|$)", re.ASCII)
_PROCESSES = "NPROC_PER_NODE"
# Arguments beyond this are no command line that someone wrote.
_MAX_TEXT = 20_000


def lints(spec: PodSpec, ask: PodAsk, option: Option) -> Iterator[str]:
    """Word a warning for each habit that the share given breaks."""
    for item in ask.gpu_containers:
        container = _container(spec, item)
        held = _seen(item, option)
        text = " ".join((*(container.command or ()), *(container.args or ())))[:_MAX_TEXT]
        env = {variable.name: variable.value for variable in container.env or ()}
        visible = env.get(_VISIBLE)
        if visible is not None and _breaks(visible, held):
            yield messages.lint_visible_devices(container.name, visible, held)
        yield from _processes(container.name, text, env, held)
        if item.count > 1 and item.resource is not None and item.resource.profile:
            yield messages.lint_several_slices(container.name, item.count, item.resource.name)
        if option.mode in _REPLICAS and _fills_memory(container, text):
            yield messages.lint_memory_fraction(container.name, describe(option))


def _container(spec: PodSpec, item: ContainerAsk) -> Container:
    if item.kind is ContainerKind.APP:
        return spec.containers[item.index]
    if item.kind is ContainerKind.EPHEMERAL:
        return (spec.ephemeral_containers or ())[item.index]
    return (spec.init_containers or ())[item.index]


def _seen(item: ContainerAsk, option: Option) -> int:
    """How many GPUs a process in the container can use: of slices and replicas, one."""
    return item.count if option.mode == SharingMode.WHOLE.value else 1


def _breaks(visible: str, held: int) -> bool:
    """Say whether the variable names a GPU that the container won't have."""
    for part in visible.split(","):
        name = part.strip()
        # By uuid: which one it gets is not known before.
        if name.startswith(("GPU-", "MIG-")):
            return True
        if name.isascii() and name.isdigit() and int(name[:6]) >= held:
            return True
    return False


def _processes(
    container: str, text: str, env: Mapping[str, str | None], held: int
) -> Iterator[str]:
    match = max(_PER_GPU.finditer(text), key=lambda found: int(found["count"]), default=None)
    if match is not None and int(match["count"]) > held:
        yield messages.lint_processes(container, match["flag"], int(match["count"]), held)
    value = env.get(_PROCESSES) or ""
    if value.isascii() and value.isdigit() and int(value[:6]) > held:
        yield messages.lint_processes(container, _PROCESSES, int(value[:6]), held)


def _fills_memory(container: Container, text: str) -> bool:
    """Say whether a server takes a part of the whole card's memory, as vLLM does by default."""
    return bool(
        _MEMORY_FRACTION.search(text) or _VLLM.search(text) or _VLLM.search(container.image)
    )
