"""KV-cache offload for vLLM: the ledger in the scheduler process, a mover in every worker.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KVOffloadConnector",
        "kv_connector_module_path": "kvoffload.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "64GiB"}}'

Options of `kv_connector_extra_config` (see `Options`): `host`, `blocks_per_chunk`, `deadline_seconds`.
This is the only room that imports vllm.
"""

from kvoffload.vllm.connector import KVOffloadConnector

__all__ = ["KVOffloadConnector"]
