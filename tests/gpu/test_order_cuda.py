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
    command = [sys.executable, "-m", "pytest", "-v", "--durations", "5", "-p", "no:cacheprovider", "-m", "gpu", *files]
    command += ["-k", f"{path} and not cupy"]  # streams of the two frameworks are the same to us
    command += ["-o", "faulthandler_timeout=60"]  # where it stands, if it stands
    child = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output = child.communicate(timeout=240)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        output = child.communicate()[0]
    assert child.returncode == 0, output[-6000:]
    assert " passed" in output
