"""The cluster under test, fairslice at work on it, and a corner of it for each test."""

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from .harness.installation import installed
from .harness.jobsets import JobSets
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.target import Target
from .harness.targets import find_target

_HERE = Path(__file__).parent
_SERVING = pytest.StashKey[Fairslice]()
_TARGET = pytest.StashKey[Target]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the suite on one event loop: nodes and watches live as long as the session."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("cluster"))
            if isinstance(item, pytest.Function) and pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what fairslice logged where a scenario fails."""
    report = yield
    if report.failed and item.path.is_relative_to(_HERE):
        if _SERVING in item.session.stash:
            report.sections.append(("fairslice", item.session.stash[_SERVING].logs()))
        if _TARGET in item.session.stash:
            report.sections.append(("target", item.session.stash[_TARGET].logs()))
    return report


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def target(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Target]:
    """The sandbox, or the cluster that FAIRSLICE_CLUSTER_KUBECONFIG names."""
    async with find_target(tmp_path_factory.mktemp("cluster")) as found:
        request.session.stash[_TARGET] = found
        yield found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def jobsets(target: Target) -> JobSets:
    """JobSets as a kind of the cluster, there before fairslice is."""
    return await JobSets.installed(target)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fairslice(
    target: Target,
    jobsets: JobSets,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Fairslice]:
    """An installation under the run's policy, taken away again at the end."""
    async with installed(target, tmp_path_factory.mktemp("fairslice")) as serving:
        request.session.stash[_SERVING] = serving
        yield serving


@pytest_asyncio.fixture(loop_scope="session")
async def bare_scene(target: Target) -> AsyncIterator[Scene]:
    """A corner of the cluster, whether fairslice runs or not."""
    scene = Scene(target)
    yield scene
    target.check_alive()
    await scene.tear_down()


@pytest_asyncio.fixture(loop_scope="session")
async def scene(bare_scene: Scene, fairslice: Fairslice) -> AsyncIterator[Scene]:
    """A corner of the cluster with fairslice at work; nobody may have seen too much in it."""
    yield bare_scene
    assert bare_scene.overexposed() == []
