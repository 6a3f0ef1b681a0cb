"""All tests here need a GPU: marked so, and skipped with the reason where there is none."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python"))

from backends import no_gpu  # noqa: E402


def pytest_collection_modifyitems(items):
    reason = no_gpu()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
