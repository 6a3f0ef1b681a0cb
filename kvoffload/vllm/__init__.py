"""KV-cache offload for vLLM: the ledger in the scheduler process, a mover in every worker.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KVOffloadConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "64GiB", "disk": "/nvme/kv", "disk_size": "1TiB"}}'

vLLM finds the name through the entry point of an installed wheel (`kvoffload_plugin`); otherwise it also needs
"kv_connector_module_path": "kvoffload.vllm". Options of `kv_connector_extra_config`: `kvoffload.vllm.options.Options`.
This is the only room that imports vllm.
"""

from kvoffload.vllm.connector import KVOffloadConnector

__all__ = ["KVOffloadConnector"]
