"""Tells vLLM the connector's name, so that `"kv_connector": "KVOffloadConnector"` is enough.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`), also in engines that use
another connector or none. So this module stands outside of the package: importing it imports nothing.
"""


def register() -> None:
    """Adds the name; what stands behind it is imported by the engine that asks for it. Never raises."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        KVConnectorFactory.register_connector("KVOffloadConnector", "kvoffload.vllm", "KVOffloadConnector")
    except Exception:
        pass  # registered already; or a vLLM that has it elsewhere, where kv_connector_module_path still serves
