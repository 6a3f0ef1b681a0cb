"""The OpenAI server, started for real with the connector and asked by the OpenAI client over HTTP."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

openai = pytest.importorskip("openai", reason="the OpenAI client is not installed; `make test-vllm` installs it")
pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from test_engine import environment, models, pytestmark  # noqa: E402, F401
from test_plugin import install  # noqa: E402

START_SECONDS = 240
DRAIN_SECONDS = 60


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[str]:  # noqa: F811
    """Base address of a running server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transfer = {
        "kv_connector": "KVOffloadConnector",  # known by the plug-in alone
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "64MiB", "blocks_per_chunk": 1, "worth_loading": "always"},
    }
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "llama"),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--skip-tokenizer-init",
        "--load-format", "safetensors", "--enforce-eager", "--dtype", "float32", "--block-size", "32",
        "--max-model-len", "1024", "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip
    log = models / "server.log"
    path = os.pathsep.join([environment()["PYTHONPATH"], str(install(models / "plugin"))])
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment(VLLM_SERVER_DEV_MODE="1", PYTHONPATH=path), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_up(process, address, log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _wait_until_up(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended:\n{log.read_text()[-6000:]}"
        try:
            with urllib.request.urlopen(address + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up:\n{log.read_text()[-6000:]}")


def _metric(address: str, name: str) -> float:
    """Sum of its samples. It must be there."""
    with urllib.request.urlopen(address + "/metrics", timeout=10) as reply:
        found = re.findall(rf"^{name}\{{.*\}} (\S+)$", reply.read().decode(), re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def _external_hits(address: str) -> float:
    return _metric(address, "vllm:external_prefix_cache_hits_total")


def _forget_local(address: str) -> None:
    request = urllib.request.Request(address + "/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def _ask(client: openai.OpenAI, prompt: tuple[int, ...], answer: int) -> list[int]:
    reply = client.completions.create(
        model="tiny",
        prompt=list(prompt),
        max_tokens=answer,
        temperature=0,
        extra_body={"ignore_eos": True, "detokenize": False, "return_token_ids": True},
    )
    return list(reply.choices[0].token_ids)


def test_hits_over_http(server: str, models: Path) -> None:  # noqa: F811
    from prompts import ROUNDS

    expected = json.loads((models / "expected.json").read_text())["plain"]
    asked = list(zip(ROUNDS["plain"].prompts, expected, strict=True))[-4:]
    client = openai.OpenAI(base_url=server + "/v1", api_key="none", timeout=60, max_retries=0)
    want = sum((len(prompt) - 1) // 32 * 32 for prompt, _ in asked)
    for prompt, answer in asked:
        assert _ask(client, prompt, len(answer)) == answer
    assert _external_hits(server) == 0
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:  # the idle server finishes its stores by itself, soon
        _forget_local(server)
        before = _external_hits(server)
        for prompt, answer in asked:
            assert _ask(client, prompt, len(answer)) == answer
        if _external_hits(server) - before == want:
            break
        assert time.monotonic() < deadline, "an idle server did not finish its stores"
    _check_metrics(server, want)


def _check_metrics(server: str, least_hit_tokens: int) -> None:
    """What vLLM counts by itself agrees with what we tell it; metrics of both halves arrive, gauges too."""
    assert _metric(server, "vllm:kvoffload_hit_tokens_total") == _external_hits(server) >= least_hit_tokens
    assert _metric(server, "vllm:kvoffload_hit_chunks_total") * 32 == _external_hits(server)
    stored = _metric(server, "vllm:kvoffload_stored_chunks_total")
    assert stored == _metric(server, "vllm:kvoffload_held_chunks") > 0  # of the host tier; there is no other
    assert _metric(server, "vllm:kvoffload_moved_bytes_total") > 0
    assert 0 < _metric(server, "vllm:kvoffload_usage") < 1
    assert _metric(server, "vllm:kvoffload_refused_tokens_total") == 0
    assert _metric(server, "vllm:kvoffload_failed_transfers_total") == 0
