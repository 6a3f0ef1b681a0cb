"""Real vLLM on the CPU with the connector: each group of cases in a process of its own, one engine for all of them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from vllm.platforms import current_platform

from kvoffload import __file__ as package_file

HERE = Path(__file__).parent
GROUP_SECONDS = 500

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(GROUP_SECONDS + 60),
    pytest.mark.skipif(not current_platform.is_cpu(), reason="this vLLM is not the CPU build"),
]


def environment(**extra: str) -> dict[str, str]:
    """One thread a process: the model is tiny, and waiting threads would take the cores from the copies."""
    package_root = str(Path(package_file).parents[1])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")])),
        "PYTHONHASHSEED": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **extra,
    }


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints; the answers without a connector come to it when they are needed."""
    import models as checkpoints

    folder = tmp_path_factory.mktemp("models")
    checkpoints.write_llama(folder / "llama")
    checkpoints.write_deepseek(folder / "deepseek")
    for seed, name in enumerate(("adapter a", "adapter b")):
        checkpoints.write_adapter(folder / name, seed)
    checkpoints.write_window(folder / "window")
    checkpoints.write_mixed(folder / "mixed")
    return folder


def run(group: str, models: Path, result: Path) -> None:
    extra = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if group.startswith("two ranks"):
        extra["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    command = [sys.executable, str(HERE / "run_group.py"), group, str(models), str(result)]
    log = result.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.run(
            command, env=environment(**extra), stdout=output, stderr=subprocess.STDOUT, timeout=GROUP_SECONDS
        )
    # vLLM may fail while it is torn down; what counts is written before.
    assert result.exists(), f"exit status {process.returncode}:\n{log.read_text()[-6000:]}"


@functools.cache
def expect(model: str, models: Path) -> dict[str, list[list[int]]]:
    """The answers without the connector, by round."""
    result = models / f"expected {model}.json"
    run(f"expected {model}", models, result)
    return dict(json.loads(result.read_text()))


@functools.cache
def outcomes(group: str, models: Path) -> dict[str, str]:
    from run_group import GROUPS

    if GROUPS[group].after:
        outcomes(GROUPS[group].after, models)
    if GROUPS[group].answers:
        expect(GROUPS[group].model, models)
    result = models / f"{group}.json"
    run(group, models, result)
    return dict(json.loads(result.read_text()))


def _cases() -> list[tuple[str, str]]:
    from run_group import GROUPS

    return [(group, case) for group, content in GROUPS.items() for case in content.cases]


@pytest.mark.parametrize(("group", "case"), _cases())
def test_case(group: str, case: str, models: Path) -> None:
    outcome = outcomes(group, models).get(case, "not run: an earlier case of its group failed")
    assert outcome == "passed", outcome
