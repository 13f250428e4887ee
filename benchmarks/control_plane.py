"""A real control plane as the benchmarks use it: pausing controllers, counting writes."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairslice.kube.client import KubeClient

from .measuring import descendants

__all__ = ["controller_qps", "paused", "process_of", "writes", "writes_between"]

_WRITES = ("APPLY", "DELETE", "DELETECOLLECTION", "PATCH", "POST", "PUT")
# Nobody's work: leases are renewed and rights are asked for whatever is submitted.
_ASIDE = ("leases", "subjectaccessreviews", "selfsubjectaccessreviews", "tokenreviews")
_LINE = re.compile(rb"^apiserver_request_total\{([^}]*)\} (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes of a local control plane for a while (SIGSTOP), and let them go on."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def controller_qps(pids: Sequence[int]) -> str:
    """Say what the controller-manager may ask a second, if its command line is known."""
    for pid in pids:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "controller-manager" in argv[0]:
            found = [arg for arg in argv if arg.startswith("--kube-api-qps")]
            return found[0].rpartition("=")[2] if found else "20 (the default)"
    return "unknown: name its process with --controllers"


def process_of(words: str) -> int | None:
    """Find the process of ours whose command line has these words."""
    for pid in descendants():
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if words in argv:
            return pid
    return None


async def writes(client: KubeClient) -> Counter[str]:
    """Count the writes that the API server has taken so far, by verb and resource."""
    found: Counter[str] = Counter()
    for line in _LINE.finditer(await client.get("/metrics")):
        labels = dict(_LABEL.findall(line[1].decode()))
        resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
        accepted = labels["code"].startswith("2") and not labels["dry_run"]
        if labels["verb"] in _WRITES and accepted and labels["resource"] not in _ASIDE:
            found[f"{labels['verb']} {resource}"] += int(float(line[2]))
    return found


def writes_between(before: Counter[str], after: Counter[str]) -> Counter[str]:
    """Count what came between two readings."""
    return Counter({key: count for key in after if (count := after[key] - before[key])})
