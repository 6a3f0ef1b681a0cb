"""KVCache, the two halves in one process: right bytes or a miss, nothing lost, nothing leaked."""

import hashlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvoffload as kv
from kvoffload import _C

BLOCKS, PAGE, PER_CHUNK = 32, 1000, 2


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    _C.fault_disarm_all()


def key(name) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def content(name) -> np.ndarray:
    return np.random.default_rng(list(key(name))).integers(0, 256, (PER_CHUNK, PAGE), np.uint8)


def make(slots: int, **options):
    tensor = np.zeros((BLOCKS, PAGE), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=PER_CHUNK)
    return tensor, kv.KVCache(layout, slots * layout.groups[0].slot_bytes, **options)


def store(tensor, cache, name, place=0):
    blocks = [place, place + 1]
    tensor[blocks] = content(name)
    transfer = cache.store([key(name)], blocks)
    transfer.before()
    return transfer


def loads_right(tensor, cache, name, place=8) -> bool:
    tensor[place : place + PER_CHUNK] = 0
    cache.load([key(name)], [place, place + 1]).before()
    return bool((tensor[place : place + PER_CHUNK] == content(name)).all())


def test_what_was_stored_comes_back_and_the_oldest_goes_first():
    tensor, cache = make(slots=3)
    with cache:
        for name in "abc":
            store(tensor, cache, name)
        assert loads_right(tensor, cache, "a")  # used: now b is the oldest
        store(tensor, cache, "d")
        assert [cache.lookup([key(name)]).host for name in "abcd"] == [1, 0, 1, 1]
        assert all(loads_right(tensor, cache, name) for name in "acd")
        assert cache.stats()["evicted_keys"] == 1


def test_a_key_is_a_hit_only_when_its_bytes_are_there():
    _, cache = make(slots=3)
    with cache:
        stream = kv.HostStream()
        stream.delay(0.1)
        transfer = cache.store([key("a")], [0, 1], stream=stream)
        assert cache.lookup([key("a")]).host == 0
        with pytest.raises(kv.MissingKey, match="only the first 0 are ready"):
            cache.load([key("a")], [2, 3])
        transfer.wait(timeout_seconds=10)
        assert cache.lookup([key("a")]).host == 1


def test_a_failed_store_is_a_miss_and_can_be_repeated():
    tensor, cache = make(slots=3)
    with cache:
        _C.fault_arm("copy", 0, 1)
        tensor[:2] = content("a")
        result = cache.store([key("a")], [0, 1]).wait(timeout_seconds=10)
        assert not result.ok
        assert "copy 0" in result.error
        assert cache.lookup([key("a")]).host == 0
        store(tensor, cache, "a")
        assert loads_right(tensor, cache, "a")


def test_a_failed_load_drops_its_keys():
    tensor, cache = make(slots=3)
    with cache:
        store(tensor, cache, "a")
        assert cache.lookup([key("a")]).host == 1
        _C.fault_arm("copy", 0, 1)
        transfer = cache.load([key("a")], [4, 5])
        with pytest.raises(kv.DeviceError):
            transfer.before()
        transfer.wait(timeout_seconds=10)
        assert cache.lookup([key("a")]).host == 0


def test_a_full_queue_or_bad_ids_undo_the_plan():
    tensor, cache = make(slots=4, queue_depth=1)
    with cache:
        stream = kv.HostStream()
        stream.delay(0.2)
        first = cache.store([key("a")], [0, 1], stream=stream)
        with pytest.raises(kv.QueueFull, match="queue_depth"):
            cache.store([key("b")], [2, 3])
        with pytest.raises(kv.InvalidInput, match="block id 99"):
            cache.store([key("b")], [2, 99])
        first.wait(timeout_seconds=10)
        assert cache.lookup([key("b")]).host == 0
        store(tensor, cache, "b")
        assert loads_right(tensor, cache, "b")
        assert cache.stats()["free_slots"] == 2


def test_storing_what_is_there_moves_nothing():
    tensor, cache = make(slots=4)
    with cache:
        store(tensor, cache, "a")
        cache.lookup([key("a")])
        assert store(tensor, cache, "a").wait(timeout_seconds=10).bytes == 0
        assert cache.load([], []).wait(timeout_seconds=10).bytes == 0


def test_reset_hides_even_what_is_on_its_way():
    tensor, cache = make(slots=4)
    with cache:
        store(tensor, cache, "a")
        stream = kv.HostStream()
        stream.delay(0.1)
        late = cache.store([key("b")], [2, 3], stream=stream)
        cache.reset()
        late.wait(timeout_seconds=10)
        assert [cache.lookup([key(name)]).host for name in "ab"] == [0, 0]
        assert cache.stats()["free_slots"] == 4


def test_lookups_without_loads_pin_nothing():
    tensor, cache = make(slots=4)
    with cache:
        for round_number in range(8):
            for name in range(4):
                store(tensor, cache, (round_number, name))
                for _ in range(50):
                    assert cache.lookup([key((round_number, name))]).host == 1
        assert cache.stats()["dropped_keys"] == 0


def test_errors_name_what_was_given_and_what_is_allowed():
    tensor = np.zeros((BLOCKS, PAGE), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=PER_CHUNK)
    with pytest.raises(kv.InvalidInput, match=r"huge_page.*huge_pages"):
        kv.KVCache(layout, "1MiB", huge_page=False)
    with pytest.raises(kv.MemoryLimit, match=r"host 4095 bytes.*raise `host`"):
        kv.KVCache(layout, 4095)
    with kv.KVCache(layout, "1MiB") as cache:
        with pytest.raises(kv.InvalidInput, match="16"):
            cache.store([b"short"], [0, 1])
        with pytest.raises(kv.InvalidInput, match="block"):
            cache.store([key("a")], [0])
        with pytest.raises(kv.InvalidInput, match="group = 3"):
            cache.lookup([key("a")], group=3)
    with pytest.raises(kv.Closed):
        cache.store([key("a")], [0, 1])
    cache.close()


def test_a_plan_is_undone_whatever_error_stops_it():
    tensor, cache = make(slots=4)
    with cache:
        with pytest.raises(kv.InvalidInput, match="after 'no mark'"):
            cache.store([key("a")], [0, 1], after="no mark")
        stats = cache.stats()
        assert (stats["jobs_in_flight"], stats["free_slots"], stats["tier_off"]) == (0, 4, False)
        store(tensor, cache, "a")
        assert loads_right(tensor, cache, "a")


def test_after_close_every_call_says_so():
    tensor, cache = make(slots=4)
    store(tensor, cache, "a")
    cache.close()
    for call in (lambda: cache.lookup([key("a")]), lambda: cache.load([key("a")], [0, 1]), cache.stats, cache.reset):
        with pytest.raises(kv.Closed):
            call()


def test_what_is_there_costs_no_place_in_the_queue():
    tensor, cache = make(slots=4, queue_depth=1)
    with cache:
        store(tensor, cache, "a")
        cache.lookup([key("a")])
        stream = kv.HostStream()
        stream.delay(0.1)
        cache.store([key("b")], [2, 3], stream=stream)
        assert cache.store([key("a")], [0, 1]).wait(timeout_seconds=10).bytes == 0


UNCLOSED = """
import sys, numpy as np, kvoffload as kv
from kvoffload import _C
def work():
    tensor = np.ones((8, 1 << 20), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    cache = kv.KVCache(layout, "16MiB")
    _C.fault_arm("copy_delay", 0, 100)
    cache.store([bytes([i]) * 16 for i in range(8)], list(range(8)))
    return cache, layout, tensor
"""


@pytest.mark.parametrize(
    "end",
    ["work(); print('dropped')", "kept = work(); print('dropped')",
     "stream = kv.HostStream(); kept = work(); stream.delay(6); kept[0].store([b'x' * 16], [3], stream=stream); "
     "kept[0].close(0.2); print('dropped')"],
    ids=["dropped", "process ends", "stuck"],
)  # fmt: skip
def test_tensors_outlive_the_copies_that_nobody_waited_for(end):
    done = subprocess.run([sys.executable, "-c", UNCLOSED + end], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "dropped\n"), done.stderr


names = st.integers(0, 9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["store", "load", "fail", "reset"]), names), max_size=60))
def test_any_order_of_calls_gives_right_bytes_or_a_miss(steps):
    tensor, cache = make(slots=4)
    maybe: set[int] = set()  # stored since the last reset and not failed: may be a hit, others must not
    with cache:
        for action, name in steps:
            if action == "reset":
                cache.reset()
                maybe.clear()
            elif action == "load":
                hit = cache.lookup([key(name)]).host
                assert not hit or name in maybe
                assert not hit or loads_right(tensor, cache, name)
            else:
                known = cache.lookup([key(name)]).host
                _C.fault_arm("copy", 0, 1 if action == "fail" else 0)
                tensor[:2] = content(name)
                ok = cache.store([key(name)], [0, 1]).wait(timeout_seconds=10).ok
                _C.fault_disarm_all()
                assert ok == (action == "store" or bool(known))
                maybe.add(name) if ok else maybe.discard(name)
                assert cache.lookup([key(name)]).host == ok


def test_many_threads_share_one_cache():
    slots, rounds = 8, 60
    tensor = np.zeros((BLOCKS, PAGE), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=PER_CHUNK)
    wrong: list[object] = []
    with kv.KVCache(layout, slots * layout.groups[0].slot_bytes) as cache:

        def work(thread: int) -> None:
            place = 4 * thread
            for i in range(rounds):
                name = (i * 7 + thread) % 16
                try:
                    tensor[place : place + 2] = content(name)
                    cache.store([key(name)], [place, place + 1]).wait(timeout_seconds=20)
                    tensor[place + 2 : place + 4] = 0
                    cache.load([key(name)], [place + 2, place + 3]).before()
                    if not (tensor[place + 2 : place + 4] == content(name)).all():
                        wrong.append((thread, name))
                except kv.MissingKey:
                    pass  # evicted in between, or still on its way for another thread
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = cache.stats()
    assert wrong == []
    assert stats["load_jobs"] > rounds
    assert stats["ready_keys"] <= slots


def test_importing_starts_no_thread_and_touches_no_driver():
    script = (
        "import threading, os, kvoffload\n"
        "assert len(os.listdir('/proc/self/task')) == 1, os.listdir('/proc/self/task')\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()\n"
        "import sys; assert 'torch' not in sys.modules and 'vllm' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"OPENBLAS_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
