"""The parts of `bench transfer` that bench scripts use too: rows that fit, the rig, interference. No times."""

import ctypes
import importlib
import itertools
import time

import numpy as np
import pytest

from kvoffload import _C
from kvoffload.cli import neighbours
from kvoffload.cli.device_memory import Target
from kvoffload.cli.interference import Traffic, Window, interfere
from kvoffload.cli.measure import Ceilings, measure_row, steps_of
from kvoffload.cli.models import MODELS, Shape, model_shape
from kvoffload.cli.rig import Rig
from kvoffload.cli.sizing import Row, fit, make_row, usable_slots
from kvoffload.errors import KVOffloadError, MemoryLimit, Unsupported
from kvoffload.free_memory import available_bytes

LAYERS, PAGES = Shape("layers", 1000, tensors=3), Shape("pages", 4096)
CEILINGS = Ceilings(h2d=10, d2h=10, both_h2d=10, both_d2h=10, bytes=1)


@pytest.fixture
def rig():
    rows = [make_row(LAYERS, 2000), make_row(PAGES, 8)]
    rows, arena_bytes = fit(rows, 64 << 20, 64 << 20)
    target = Target("host")
    memory, _ = target.allocate(2 * max(row.bytes for row in rows), 4096)
    with Rig(target, memory, rows, arena_bytes) as made:
        yield made


@pytest.mark.parametrize(
    ("page_bytes", "count", "per_chunk", "blocks"),
    [(4096, 64, 64, 64), (4096, 1000, 512, 1024), (2 << 20, 10, 1, 10), (16 << 20, 3, 1, 3), (36 << 10, 100, 56, 112)],
)
def test_rows_are_whole_slots_of_two_mib(page_bytes, count, per_chunk, blocks):
    row = make_row(Shape("", page_bytes), count)
    assert (row.blocks_per_chunk, row.blocks, row.num_blocks) == (per_chunk, blocks, 2 * blocks)
    assert (
        row.slot_bytes == _C.GroupGeometry([_C.PageRun(4096, page_bytes, page_bytes)], 2 * blocks, per_chunk).slot_bytes
    )


def test_what_fits_is_not_reduced():
    rows = [make_row(Shape("", size), 100) for size in (4096, 36 << 10, 2 << 20)]
    fitted, arena_bytes = fit(rows, 1 << 40, 1 << 40)
    assert fitted == rows
    assert arena_bytes < 1.5 * 2 * 100 * rows[-1].slot_bytes
    assert fit(rows, 1 << 40, 1 << 40, least_bytes=10 << 30)[1] == 10 << 30


@pytest.mark.parametrize(("host_bytes", "device_bytes"), [(100 << 20, 1 << 40), (1 << 40, 100 << 20)])
def test_rows_shrink_to_the_smaller_side(host_bytes, device_bytes):
    rows = [make_row(Shape("", 4096), 1000), make_row(Shape("", 2 << 20), 1000)]
    (small, large), arena_bytes = fit(rows, host_bytes, device_bytes)
    assert small == rows[0]
    assert 1 <= large.chunks < 26  # two times 25 slots are 100 MiB
    assert 2 * large.bytes <= device_bytes
    assert arena_bytes <= host_bytes
    assert len(usable_slots(arena_bytes, [small.slot_bytes, large.slot_bytes])[1]) >= 2 * large.chunks


def test_no_room_for_two_slots_is_an_error():
    with pytest.raises(MemoryLimit, match=r"two slots of 1.01 MiB|two slots of 1052672 B|raise --host-memory"):
        fit([make_row(Shape("1 MiB", 1 << 20), 1)], 1 << 40, 1 << 20)


def test_slots_of_groups_lie_inside_the_arena():
    arena_bytes, sizes = 10_000_000, [8192, 100_352]
    plan = _C.plan_extents(arena_bytes, sizes)
    for group, slots in enumerate(usable_slots(arena_bytes, sizes)):
        ends = [plan.offset_of(group, slot) + sizes[group] for slot in slots]
        assert ends == sorted(ends)
        assert ends[-1] <= arena_bytes
        assert len(slots) == len(set(slots)) > 0.8 * arena_bytes / sizes[group]


def test_available_memory_is_the_least_of_machine_and_cgroup(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_bytes(str(tmp_path), str(tmp_path)) == 5000 << 10
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(str(tmp_path), str(tmp_path)) == 5000 << 10
    (tmp_path / "memory.max").write_text("50000\n")
    assert available_bytes(str(tmp_path), str(tmp_path)) == 49000


def test_ceiling_of_uneven_directions_lies_between_one_way_and_both():
    machine = Ceilings(h2d=55, d2h=50, both_h2d=48, both_d2h=49, bytes=1)
    assert machine.gb_per_s(5, 0) == 55
    assert machine.gb_per_s(0, 5) == 50
    assert machine.gb_per_s(7, 7) == 97
    assert machine.gb_per_s(48 * 3, 49) == pytest.approx((48 * 3 + 49) / (1 + 96 / 55))


@pytest.mark.parametrize("name", MODELS)
def test_a_models_block_holds_the_same_bytes_in_every_layout(name):
    model = MODELS[name]
    fused, row = model_shape(name), model_shape(f"{name}:row")
    assert fused.tensors == model.layers
    assert fused.block_bytes == row.block_bytes == row.page_bytes
    assert model_shape(f"{name}:fp8").block_bytes * 2 == fused.block_bytes
    ranks = 1 if model.latent_items else 8 if model.kv_heads == 8 else 4
    assert model_shape(f"{name}:tp8").page_bytes * ranks == fused.page_bytes
    if not model.latent_items:
        split = model_shape(f"{name}:split")
        assert (split.tensors, split.block_bytes) == (2 * model.layers, fused.block_bytes)


def test_all_ways_and_directions_of_a_row(rig):
    calls = itertools.count()
    paths = ["auto", "host", "kernel", "staged"]
    cells = measure_row(rig, 0, ["h2d", "d2h", "both"], paths, 2, CEILINGS, lambda: next(calls))
    assert next(calls) == steps_of(["h2d", "d2h", "both"], paths, 2)
    assert [(cell.direction, cell.path) for cell in cells] == list(itertools.product(["h2d", "d2h", "both"], paths))
    assert {cell.taken for cell in cells} == {"host", "kernel", "staged"}
    assert all(cell.verified_bytes == cell.bytes > 0 for cell in cells)


@pytest.mark.parametrize("store", [True, False], ids=["store", "load"])
def test_plain_copies_go_where_the_engine_goes(rig, store):
    """What memcpy-loop and memcpy-batch copy, carried out by memmove: verify() must find it right, and not its like."""

    def run_plain(index, direction, path):
        for target, source, size in rig._raw_copies(index, store, 1.0):
            ctypes.memmove(target, source, size)

    def run_askew(index, direction, path):
        for target, source, size in rig._raw_copies(index, store, 1.0):
            ctypes.memmove(target, source, size - 1)

    rig.prepare(0)
    rig.run = run_plain
    assert rig.verify(0, store, "memcpy-loop") == rig.rows[0].bytes
    rig.run = run_askew
    with pytest.raises(KVOffloadError, match="WRONG BYTES"):
        rig.verify(0, store, "memcpy-loop")


def test_store_and_load_use_blocks_and_slots_of_their_own(rig):
    for index in range(len(rig.rows)):
        (stored, stored_slots), (loaded, loaded_slots) = rig.ids(index, True), rig.ids(index, False)
        assert not set(stored) & set(loaded)
        assert not set(stored_slots) & set(loaded_slots)
        assert len(np.unique(np.concatenate([stored, loaded]))) == rig.rows[index].num_blocks


class Sleeper:
    """A neighbour that takes a millisecond a step, and says so exactly."""

    name = "sleeper"

    def __init__(self):
        self.windows = []

    def window(self, steps):
        started = time.perf_counter()
        time.sleep(steps / 1000)
        self.windows.append(steps)
        return Window(started, time.perf_counter(), steps / 1000)


def test_interference_compares_equal_windows(rig):
    rig.prepare(1)
    neighbour, ticks = Sleeper(), itertools.count()
    found = interfere(
        neighbour, lambda: rig.submit(1, False, "auto"), pairs=3, window_seconds=0.02, tick=lambda: next(ticks)
    )
    assert next(ticks) == 3
    assert found.steps == 20
    assert neighbour.windows[-6:] == [20] * 6
    assert found.slowdown_pct.samples == (0, 0, 0)
    assert len(found.gb_per_s.samples) == 3
    assert found.gb_per_s.least > 0
    assert found.alone_gb_per_s > 0


def test_traffic_counts_what_ended_in_the_window(rig):
    rig.prepare(1)
    with Traffic(lambda: rig.submit(1, True, "auto")) as traffic:
        traffic.wait_until_flowing(5)
        seen = traffic.bytes_between(0, time.perf_counter())
        assert seen >= 5 * rig.rows[1].bytes
        assert seen % rig.rows[1].bytes == 0
        assert traffic.bytes_between(0, 1e-9) == 0


def test_traffic_that_fails_is_no_measurement(rig):
    rig.prepare(1)
    _C.fault_arm("copy", 20, 1000)
    try:
        with pytest.raises(KVOffloadError, match="beside the neighbour failed"):
            interfere(Sleeper(), lambda: rig.submit(1, True, "auto"), pairs=1, window_seconds=0.01)
    finally:
        _C.fault_disarm_all()


def test_neighbours_say_what_they_lack(monkeypatch):
    def no_torch(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", no_torch)
    with pytest.raises(Unsupported, match="come from torch, which is not installed"):
        neighbours.large_product(0)


def test_device_memory_is_halved_until_it_can_be_had(monkeypatch):
    def small(device, size):
        if size > 1000:
            raise MemoryLimit(f"no {size}")

    monkeypatch.setattr(_C, "device_alloc", small)
    assert Target("host").allocate(7000, 100)[1] == 875
    with pytest.raises(MemoryLimit, match="lower --count"):
        Target("host").allocate(7000, 900)


def test_row_counts_bytes_of_all_tensors():
    row = Row(LAYERS, asked=4, blocks_per_chunk=2, chunks=2)
    assert (row.blocks, row.bytes, row.slot_bytes) == (4, 12_000, 8192)
