"""KV-cache offload for vLLM: the ledger in the scheduler process, a mover in every worker.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KVOffloadConnector",
        "kv_connector_module_path": "kvoffload.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "64GiB", "disk": "/nvme/kv", "disk_size": "1TiB"}}'

Options of `kv_connector_extra_config`: see `kvoffload.vllm.options.Options`. Only `host` is required.
This is the only room that imports vllm.
"""

from kvoffload.vllm.connector import KVOffloadConnector

__all__ = ["KVOffloadConnector"]
