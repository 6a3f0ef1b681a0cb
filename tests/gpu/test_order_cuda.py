"""The order tests of tests/python/test_order.py and the capture tests, again where order is easily lost: with one
hardware queue for all streams, and beside streams that are never idle. Variables for CUDA need a new process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
BUSY = {"KVO_TEST_BUSY_STREAMS": "8"}


@pytest.mark.parametrize("path", ["dma", "kernel", "staged"])
@pytest.mark.parametrize("settings", [ONE_QUEUE, BUSY, ONE_QUEUE | BUSY], ids=["one queue", "busy", "both"])
def test_order_holds_with(settings, path):
    files = ["tests/python/test_order.py", "tests/gpu/test_capture.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *files]
    command += ["-k", f"{path} and not cupy"]  # streams of the two frameworks are the same to us
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
