"""No test reads or leaves a table of paths in the home of whoever runs it."""

import os

import pytest

from kvoffload import _C


@pytest.fixture(autouse=True)
def _faults_for_all():
    """KVO_TEST_FAULTS=batch_copy: these fault points fire in every test, all the time."""
    points = os.environ.get("KVO_TEST_FAULTS", "").split(",")
    for point in filter(None, points):
        _C.fault_arm(point, 0, 1 << 62)
    yield
    if any(points):
        _C.fault_disarm_all()


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
