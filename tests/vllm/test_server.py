"""The OpenAI server, started for real with the connector and asked by the OpenAI client over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="the OpenAI client is not installed; `make test-vllm` installs it")
pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from test_engine import environment, expect, models, pytestmark  # noqa: E402, F401
from test_plugin import install  # noqa: E402

START_SECONDS = 240
DRAIN_SECONDS = 60


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[str]:  # noqa: F811
    """Base address of a running server."""
    with running(models, "server", host="64MiB") as (address, _):
        yield address


@contextlib.contextmanager
def running(models: Path, name: str, **options: Any) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:  # noqa: F811
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transfer = {
        "kv_connector": "KVOffloadConnector",  # known by the plug-in alone
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"blocks_per_chunk": 1, "worth_loading": "always", **options},
    }
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "llama"),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--skip-tokenizer-init",
        "--load-format", "safetensors", "--enforce-eager", "--dtype", "float32", "--block-size", "32",
        "--max-model-len", "1024", "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip
    log = models / f"{name}.log"
    path = os.pathsep.join([environment()["PYTHONPATH"], str(install(models / f"plugin of {name}"))])
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=environment(VLLM_SERVER_DEV_MODE="1", PYTHONPATH=path),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_up(process, address, log)
        yield address, process
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


def _metric(address: str, name: str, tier: str = "") -> float:
    """Sum of its samples, or of those of a tier. It must be there."""
    tier = f'tier="{tier}"' if tier else ""
    with urllib.request.urlopen(address + "/metrics", timeout=10) as reply:
        found = re.findall(rf"^{name}\{{.*{tier}.*\}} (\S+)$", reply.read().decode(), re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def _external_hits(address: str) -> float:
    return _metric(address, "vllm:external_prefix_cache_hits_total")


def _forget_local(address: str, external: bool = False) -> None:
    request = urllib.request.Request(f"{address}/reset_prefix_cache?reset_external={external}", method="POST")
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

    expected = expect("llama", models)["plain"]
    asked = [pair for pair in zip(ROUNDS["plain"].prompts, expected, strict=True) if len(pair[0]) % 32][-4:]
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


def test_killed_and_restarted_it_serves_from_disk(models: Path) -> None:  # noqa: F811
    from prompts import ROUNDS

    expected = expect("llama", models)["plain"]
    asked = [pair for pair in zip(ROUNDS["plain"].prompts, expected, strict=True) if len(pair[0]) % 32][-4:]
    chunks = sum((len(prompt) - 1) // 32 for prompt, _ in asked)
    disk = {"host": "8MiB", "disk": str(models / "disk of servers"), "disk_size": "128MiB", "write_through": True}
    with running(models, "killed", **disk) as (address, process):
        client = openai.OpenAI(base_url=address + "/v1", api_key="none", timeout=60, max_retries=0)
        for prompt, answer in asked:
            assert _ask(client, prompt, len(answer)) == answer
        deadline = time.monotonic() + DRAIN_SECONDS
        while _metric(address, "vllm:kvoffload_held_chunks", tier="disk") < chunks:
            assert time.monotonic() < deadline, "an idle server did not write what it stored"
            time.sleep(0.2)
            _ask(client, asked[0][0][:20], 1)  # metrics come with steps
        os.killpg(process.pid, signal.SIGKILL)  # engine and worker too
        process.wait(timeout=60)
    with running(models, "restarted", **disk) as (address, _):
        client = openai.OpenAI(base_url=address + "/v1", api_key="none", timeout=60, max_retries=0)
        for prompt, answer in asked:
            assert _ask(client, prompt, len(answer)) == answer
        assert _metric(address, "vllm:kvoffload_promoted_chunks_total") == chunks
        assert _external_hits(address) == chunks * 32
        _forget_local(address, external=True)
        for prompt, answer in asked:
            assert _ask(client, prompt, len(answer)) == answer
        assert _external_hits(address) == chunks * 32  # all of it had gone
