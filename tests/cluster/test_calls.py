"""How often the API server asks the webhook about one object: no oftener than it must."""

import re

import aiohttp

from .harness.manifests import pod
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually


async def _calls(fairslice: Fairslice) -> dict[str, float]:
    """Read how many reviews of pods were answered, by phase."""
    url = f"http://{fairslice.webhook_health}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    found: dict[str, float] = {}
    pattern = r'^fairslice_admission_requests_total\{kind="Pod",.*phase="(\w+)"\} (\S+)$'
    for phase, count in re.findall(pattern, text, re.MULTILINE):
        found[phase] = found.get(phase, 0) + float(count)
    return found


async def test_a_gpu_pod_is_asked_about_once_in_each_phase(
    scene: Scene, fairslice: Fairslice
) -> None:
    await scene.node(a100(mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    notebook = pod("nb", team.namespace, 1, labels={"fairslice.io/class": "experiment"})

    async def tried() -> float:
        await team.create(notebook, dry_run=True)
        return (await _calls(fairslice)).get("validate", 0)

    # API servers learn of both configurations one after the other.
    await eventually("both phases are asked about", tried)
    before = await _calls(fairslice)
    made = await team.create(notebook)
    # The PriorityClass is the class's own, and its numbers are there at once.
    given = await scene.api.get("PriorityClass", "fairslice-experiment")
    assert made.obj["spec"]["priorityClassName"] == "fairslice-experiment"
    assert made.obj["spec"]["priority"] == given["value"]
    assert made.obj["spec"]["preemptionPolicy"] == given["preemptionPolicy"]

    after = await _calls(fairslice)
    assert {phase: count - before[phase] for phase, count in after.items()} == {
        "mutate": 1,
        "validate": 1,
    }
