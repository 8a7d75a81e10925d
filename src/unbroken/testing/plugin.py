"""What pytest gets from this package: the fixture ``unbroken_cluster``, and where to look when a test fails.

pytest loads this module in every session of an environment that has Unbroken installed, so it imports nothing else:
Spark, Arrow and the rest come with the first test that asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from unbroken.testing.result import Run
    from unbroken.testing.warm.pool import WarmCluster


@dataclass
class _Session:
    """The cluster of a pytest session, the runs that no failed test has made, and the last run of all."""

    cluster: WarmCluster
    passed: list[Run] = field(default_factory=list)
    last: Run | None = None


SESSION = pytest.StashKey[_Session]()


@pytest.fixture(scope="session")
def unbroken_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCluster]:
    """Node processes with a warm Spark session, and a ZooKeeper, that all tests of this session share.

    They begin to start when the first test asks for them and end with the session, however that ends. Give it to
    `unbroken.testing.run_with_faults` as ``cluster``.
    """
    from unbroken.testing.warm.pool import WarmCluster

    with WarmCluster(tmp_path_factory.mktemp("unbroken")) as cluster:
        session = request.config.stash[SESSION] = _Session(cluster)
        try:
            yield cluster
        finally:
            del request.config.stash[SESSION]
            for run in session.passed:
                run.remove()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Say where the logs and results of a failed test's runs are; those of others are removed with the session.

    Not at once: a run may belong to a fixture that several tests look at, of which a later one may fail.
    """
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    session = item.config.stash.get(SESSION, None)
    if session is None or report.when != "call":
        return
    runs = session.cluster.take_runs()
    session.last = runs[-1] if runs else session.last
    if not report.failed:
        session.passed += runs
    elif runs:
        report.sections += [("Unbroken", run.describe()) for run in runs]
    elif session.last is not None and "unbroken_cluster" in getattr(item, "fixturenames", ()):
        report.sections.append(("Unbroken, the last run", session.last.describe()))
        session.passed = [run for run in session.passed if run is not session.last]
