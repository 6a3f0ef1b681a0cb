"""The class that vLLM makes: once in the scheduler, once in every worker. It only hands calls on to the half it is.

One code base for vLLM 0.26 and later. What 0.26 lacks is defined all the same, and what later versions dropped too:
nobody calls it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.platforms import current_platform

from kvoffload.errors import Unsupported
from kvoffload.layout import KVLayout
from kvoffload.vllm import life, recipe, start, support
from kvoffload.vllm.log_lines import show_log_lines
from kvoffload.vllm.metadata import Greeting, StepPlan
from kvoffload.vllm.metrics import KVOffloadPromMetrics
from kvoffload.vllm.options import Options
from kvoffload.vllm.scheduler import LedgerHalf
from kvoffload.vllm.stats import Changes, KVOffloadStats, ledger_values, mover_values
from kvoffload.vllm.tensors import cross_layer_layout_of, layout_of
from kvoffload.vllm.worker import Ended, MoverHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

support.check_interface()


class KVOffloadConnector(KVConnectorBase_V1, SupportsHMA):
    """KV-cache offload to host memory and disk. Options: `kvoffload.vllm.options.Options`.

    Raises InvalidInput (options) and Unsupported (models and settings not served) when it is made.
    """

    if hasattr(base, "CacheHitSource"):  # 0.32 on: what vLLM's metrics call our hits
        _cache_hit_source = base.CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        show_log_lines()
        given = self._kv_transfer_config.kv_connector_extra_config
        self._options = Options.parse(given)
        support.check_config(vllm_config, kv_cache_config)
        self._half: LedgerHalf | MoverHalf | None = None
        self._ended = Ended()
        self._changes = Changes("ledger")
        if role == KVConnectorRole.WORKER:
            life.watch_worker(vllm_config)
        else:
            start.log_notes(recipe.translate(given)[1])
            life.watch_engine()
            self._half = start.make_ledger_half(self._options, vllm_config, kv_cache_config)

    @property
    def ledger_half(self) -> LedgerHalf:
        assert isinstance(self._half, LedgerHalf)
        return self._half

    @property
    def mover_half(self) -> MoverHalf:
        assert isinstance(self._half, MoverHalf)
        return self._half

    def counters(self) -> dict[str, int]:
        """This half's counters since the start, by name."""
        return dict(self._half.counters) if self._half is not None else {}

    def shutdown(self) -> None:
        if self._half is not None:
            self._half.close()

    # ---- seen from outside

    def get_kv_connector_stats(self) -> KVOffloadStats | None:
        """What changed on this half since the last call; vLLM asks both in each step."""
        if self._half is None:
            return None
        values = ledger_values(self._half) if isinstance(self._half, LedgerHalf) else mover_values(self._half)
        return self._changes.since_last(*values)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVOffloadStats:
        return KVOffloadStats({} if data is None else data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVOffloadPromMetrics:
        return KVOffloadPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---- what we are

    @property
    def requires_kv_delivery(self) -> bool:
        """We are a cache: a dropped store is a later miss. True would throw away output of preempted requests."""
        return False

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """0.26, runner V1: one row per block for all layers, unless the cells carry scales that it has no room for."""
        groups = self._kv_cache_config.kv_cache_groups
        return len(groups) == 1 and getattr(groups[0].kv_cache_spec, "kv_quant_mode", 0) <= 1  # none, one a tensor

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """A wish, dropped by backends that cannot: one row per block for all layers, so that a block is one copy.

        Not on CPU: nothing is gained, and its MLA backend takes the wish and then fails.
        """
        return "BLHNC" if support.HAS_BLOCK_OUTERMOST_LAYOUT and current_platform.is_cuda() else None

    # ---- worker: start

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._serve(layout_of(kv_caches, self._kv_cache_config, self._options.blocks_per_chunk))

    def register_cross_layers_kv_cache(self, kv_cache: torch.Tensor, attn_backend: type[Any]) -> None:
        blocks_per_chunk = self._options.blocks_per_chunk
        self._serve(cross_layer_layout_of(kv_cache, attn_backend, self._kv_cache_config, blocks_per_chunk))

    def _serve(self, layout: KVLayout) -> None:
        self._half = start.make_mover_half(self._options, self._vllm_config, layout)
        self._changes = Changes(f"rank {self._half.mover.rank}")

    def get_handshake_metadata(self) -> Greeting:
        return start.greeting_of(self.mover_half.mover)

    # ---- worker: one step

    def handle_preemptions(self, kv_connector_metadata: base.KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, StepPlan)
        self.mover_half.start_step(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: loads are asynchronous and were submitted in `handle_preemptions`, before the forward pass."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request runs only after its load was reported."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: stores are of whole blocks, after the step."""

    def wait_for_save(self) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepPlan)
        self.mover_half.mark_stores(plan)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self._ended = self.mover_half.collect()
        return None, self._ended.finished or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        ended = self.mover_half.collect()
        return base.KVConnectorTransferResults(finished_recving=ended.finished, failed_recving=ended.failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Where failed requests are reported by name this stays empty: block ids say too little with several groups."""
        blocks, self._ended.blocks = self._ended.blocks, set()
        return blocks

    def build_connector_worker_meta(self) -> base.KVConnectorWorkerMetadata | None:
        return self.mover_half.report()

    def before_sleep(self) -> None:
        """The KV tensors' memory is about to go. Raises WaitTimeout when copies cannot be kept from it."""
        if isinstance(self._half, MoverHalf):
            self._half.quiesce()

    # ---- scheduler

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        strangers = {type(greeting).__name__ for greeting in metadata.values() if not isinstance(greeting, Greeting)}
        if strangers:
            raise Unsupported(
                f"a handshake of {', '.join(strangers)}: kvoffload does not share it with other connectors"
            )
        start.begin(list(metadata.values()), self.ledger_half, self._options, self._vllm_config)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): greeting for rank, greeting in metadata.items()})

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.ledger_half.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.ledger_half.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepPlan:
        return self.ledger_half.plan(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.ledger_half.received(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks are never held back: the fence protects the stores that still read them."""
        self.ledger_half.request_finished(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self.ledger_half.has_pending_work()

    def take_events(self) -> Iterable[Any]:
        return self.ledger_half.take_events()

    def reset_cache(self) -> bool:
        return self.ledger_half.reset()

    def new_weights(self, event: str) -> None:
        self.ledger_half.new_weights(event)
