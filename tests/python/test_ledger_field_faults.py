"""Faults that other KV-offload systems had in the field, each as a test of the ledger with two tiers: wrong bytes,
readers that stay, waits without an end. test_ledger_field_faults_disk.py has more of the disk's.

Those that need an order of events which nobody thought of are test_tiers_model.py's.
"""

from __future__ import annotations

import itertools
import random
import time
from functools import partial

import numpy as np
import pytest
from ledger_cache import Cache, keys_of, run_threads

import kvoffload as kv
from kvoffload import _C
from kvoffload.errors import InvalidInput
from kvoffload.ledger import POLICIES, Ledger
from kvoffload.messages import FinishedJob, Hello, Hit


@pytest.fixture
def open_cache(tmp_path):
    return partial(Cache, tmp_path)


# Wrong bytes


def test_sessions_that_come_back_from_disk_get_their_own_chunks(open_cache):
    """Six sessions of 16 chunks in 8 host and 64 disk slots, eight threads: every hit carries its own name, also while
    others store, evict and write the same keys."""
    cache = open_cache(host=8, disk=64)
    loaded, wrong = [0] * 8, []

    def work(thread: int) -> None:
        dice = random.Random(thread)
        try:
            for _ in range(1250):
                first = dice.randrange(16)
                keys = keys_of(first, first + dice.randrange(1, 4), dice.randrange(6))
                kind = dice.choice(("store", "demote", "promote", "load"))
                job = cache.plan(kind, keys[: cache.ledger.lookup(keys).host] if kind == "load" else keys)
                if job and kind == "load":
                    loaded[thread] += 1
                    wrong.extend(key for slot, key in zip(job.slots, keys, strict=False) if cache.host[0][slot] != key)
                if job:
                    wrong.extend(failed := cache.move(0, job, keys))
                    cache.report(0, job, failed=failed)
        except Exception as error:
            wrong.append(error)

    run_threads(work, 8)
    assert wrong == []
    assert sum(loaded) > 100
    stats = cache.ledger.stats()
    assert min(stats["promoted_keys"], stats["disk_evicted_keys"]) > 100
    assert cache.idle()


def test_host_slots_disk_slots_and_order_of_keys_are_different_things(open_cache):
    cache = open_cache(host=4, disk=16)
    for first in range(0, 12, 4):
        cache.keep(keys_of(first, first + 4))
    mixed = [key for i in (5, 2, 7, 4) for key in keys_of(i, i + 1)]
    job = cache.run("promote", mixed[:3])
    assert job.disk_slots == (5, 2, 7) and job.slots != job.disk_slots
    cache.run("promote", mixed)
    assert cache.load(mixed) == mixed
    assert cache.load(mixed[::-1]) == mixed[::-1]


def test_no_slot_is_beyond_what_was_asked_for_and_none_is_missing(tmp_path):
    """Slots of all groups together fit in the bytes given, with less than a slot of the largest to spare a group."""
    for slot_bytes, unit in itertools.product(((4096,), (4096, 12288), (8192, 4096, 20480)), (100, 163, 512)):
        total = unit * 4096 + 777
        plan = _C.plan_extents(total, list(slot_bytes))
        ledger = Ledger()
        ledger.hello(Hello(0, slot_bytes, (1,) * len(slot_bytes), total, total, "f", pinned=False, device="host"))
        used = []
        for group, size in itertools.cycle(enumerate(slot_bytes)):
            job = ledger.plan_store(keys_of(len(used), len(used) + 1), [0], group)
            if ledger.stats()["dropped_keys"]:
                break
            per_extent = plan.extent_bytes // size
            start = job.slots[0] // per_extent * plan.extent_bytes + job.slots[0] % per_extent * size
            used.append((start, start + size))
        used.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(used))
        assert used[-1][1] <= total
        if len(slot_bytes) == 1:
            assert len(used) == total // slot_bytes[0]


def test_sizes_beyond_32_bits_are_exact():
    slot_bytes, slots = 3 << 30, 1000
    ledger = Ledger()
    ledger.hello(
        Hello(0, (slot_bytes,), (1,), slots * slot_bytes, slots * slot_bytes, "f", pinned=False, device="host")
    )
    job = ledger.plan_store(keys_of(0, 1001), range(1001))
    assert job.slots == tuple(range(slots))
    assert ledger.stats()["used_bytes"] == slots * slot_bytes > 1 << 41


def test_a_store_to_disk_that_failed_leaves_no_key_behind(open_cache):
    """Neither now nor after a restart, nor does it keep host memory busy; and the key can be written later."""
    cache = open_cache(host=2, ranks=2)
    keys = keys_of(0, 2)
    cache.run("store", keys)
    job = cache.plan("demote", keys)
    cache.move(0, job, keys)
    cache.report(0, job)
    cache.report(1, job, ok=False)
    assert cache.idle()
    cache.run("store", keys_of(10, 12))  # evicts them
    assert cache.ledger.lookup(keys) == Hit(0, 0)
    slabs = cache.close()
    again = open_cache(host=2, ranks=2, slabs=slabs)
    assert again.ledger.lookup(keys) == Hit(0, 0)
    again.keep(keys)
    again.run("store", keys_of(10, 12))
    assert again.ledger.lookup(keys) == Hit(0, 2)
    again.run("promote", keys)
    assert again.load(keys) == keys


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("admission", ["all", "second_touch"])
def test_what_is_stored_is_served(open_cache, policy, admission):
    """A cache that only ever writes is worth nothing: stored, evicted, asked for again, from both tiers."""
    cache = open_cache(policy=policy, admission=admission, host=8, disk=16)
    keys = keys_of(0, 8)
    cache.run("store", keys)
    assert cache.ledger.lookup(keys) == Hit(8, 0)
    cache.run("demote", keys)
    cache.run("store", keys_of(10, 18))
    hit = cache.ledger.lookup(keys)
    assert hit.disk > 0
    cache.run("promote", keys)
    assert cache.ledger.lookup(keys) == Hit(8, 0)
    assert cache.load(keys) == keys


def test_what_is_asked_for_once_is_not_written_to_disk(open_cache):
    cache = open_cache(admission="second_touch")
    for first in range(0, 200, 4):
        cache.ledger.lookup(keys_of(first, first + 4))
        cache.keep(keys_of(first, first + 4))
    assert cache.ledger.stats()["demote_jobs"] == 0
    cache.ledger.lookup(keys_of(196, 200))
    assert cache.run("demote", keys_of(196, 200)).keys == tuple(keys_of(196, 200))


# Readers that stay, waits without an end


def test_a_thousand_lookups_that_nobody_follows_up_keep_nothing(open_cache):
    cache = open_cache(host=32, disk=32)
    for first in range(0, 64, 32):
        cache.keep(keys_of(first, first + 32))
    for i in range(1000):
        keys = keys_of(i % 8, i % 8 + 60)
        cache.ledger.lookup(keys)
        cache.ledger.states(keys)
        with cache.ledger.hold(keys_of(32 + i % 8, 64)):
            pass
    assert cache.idle()
    fresh = keys_of(100, 132)
    cache.keep(fresh)
    assert cache.ledger.lookup(fresh) == Hit(32, 0)
    cache.run("store", keys_of(200, 232))
    assert cache.ledger.lookup(fresh) == Hit(0, 32)


def test_the_same_prompt_at_once_and_aborted_leaves_each_reader_counted_once(open_cache):
    cache = open_cache(host=4)
    keys = keys_of(0, 4)
    cache.run("store", keys)
    holds = [cache.ledger.hold(keys) for _ in range(3)]
    jobs = [cache.plan("load", keys) for _ in range(3)]
    demotion = cache.plan("demote", keys)
    holds[0].release()
    holds[0].release()
    cache.ledger.abandon(jobs[0].id)
    with pytest.raises(InvalidInput):
        cache.ledger.abandon(jobs[0].id)
    cache.report(0, jobs[1])
    cache.report(0, jobs[1])
    cache.ledger.check()
    assert cache.run("store", keys_of(5, 6)) is None  # a hold, a load and a demotion are left
    holds[1].release()
    cache.report(0, jobs[2], ok=False)  # its keys are gone, not from under the others
    assert cache.ledger.lookup(keys) == Hit(0, 0)
    assert cache.run("store", keys_of(5, 6)) is None
    holds[2].release()
    assert cache.ledger.stats()["free_slots"] == 0
    cache.move(0, demotion, keys)
    cache.report(0, demotion)
    assert cache.idle()
    assert cache.ledger.lookup(keys) == Hit(0, 4)
    assert cache.ledger.stats()["free_slots"] == 4


@pytest.mark.parametrize("kind", ["store", "load", "demote", "promote"])
def test_a_transfer_that_hangs_is_a_miss_after_its_deadline_and_nobody_elses(open_cache, kind):
    cache = open_cache(host=32, disk=64, ranks=2, deadline_seconds=5)
    keys, others = keys_of(0, 1), keys_of(10, 18)
    prepare(cache, kind, keys)
    cache.run("store", others)
    job = cache.plan(kind, keys)
    cache.report(0, job)  # the other rank hangs
    for _ in range(100):
        cache.now += 0.049
        assert cache.ledger.expire() == []
        assert cache.ledger.lookup(others) == Hit(8, 0)
    cache.now += 0.2
    assert cache.ledger.expire() == [FinishedJob(job.id, kind, False, False)]
    assert cache.ledger.states(keys) == ["ready" if kind == "demote" else "absent"]
    assert cache.ledger.lookup(keys) == {"demote": Hit(1, 0), "promote": Hit(0, 1)}.get(kind, Hit(0, 0))
    assert cache.ledger.lookup(others) == Hit(8, 0)
    assert cache.ledger.stats()["given_up_jobs"] == 1
    if kind == "promote":  # what it read is as good as before: somebody else may ask again
        again = cache.run("promote", keys)
        assert again.slots != job.slots
        assert cache.load(keys) == keys
    assert cache.report(1, job) == [FinishedJob(job.id, kind, False, True)]
    assert cache.idle()


def prepare(cache: Cache, kind: str, keys: list[bytes]) -> None:
    """So that `kind` has something to do with the keys."""
    if kind != "store":
        cache.run("store", keys)
    if kind == "promote":
        cache.run("demote", keys)
        fillers = keys_of(1000, 1000 + cache.ledger.stats()["capacity_slots"])
        cache.run("store", fillers)
        cache.ledger.forget(fillers)


@pytest.mark.parametrize("kind", ["store", "load", "demote", "promote"])
@pytest.mark.parametrize("stage", ["planned", "half done", "done and not told", "keys forgotten", "reset"])
def test_an_abort_at_any_stage_leaves_nothing(open_cache, kind, stage):
    cache = open_cache(ranks=2)
    keys = keys_of(0, 4)
    prepare(cache, kind, keys)
    job = cache.plan(kind, keys)
    if stage == "planned":
        cache.ledger.abandon(job.id)
    elif stage == "half done":
        cache.report(0, job)
        with pytest.raises(InvalidInput, match="1 of 2 ranks"):
            cache.ledger.abandon(job.id)
        cache.report(1, job, ok=False)
    elif stage == "done and not told":
        for rank in cache.ranks:
            cache.report(rank, job, failed=cache.move(rank, job, keys))
        with pytest.raises(InvalidInput, match="not in flight"):
            cache.ledger.abandon(job.id)
    else:
        cache.ledger.forget(keys) if stage == "keys forgotten" else cache.ledger.reset()
        assert cache.ledger.lookup(keys) == Hit(0, 0)
        for rank in cache.ranks:
            cache.report(rank, job)
        assert cache.ledger.lookup(keys) == Hit(0, 0)
    assert cache.idle()
    more = keys_of(20, 28)
    cache.keep(more)
    assert cache.load(more) == more


def test_more_keys_than_blocks_is_an_error_and_plans_nothing(open_cache):
    cache = open_cache()
    for call in (cache.ledger.plan_store, cache.ledger.plan_load):
        with pytest.raises(InvalidInput, match="3 keys and 2 block ids"):
            call(keys_of(0, 3), [0, 1])
    assert cache.idle()


def test_a_request_that_comes_back_while_its_store_is_in_flight_waits_or_misses(open_cache):
    cache = open_cache(host=4)
    keys = keys_of(0, 4)
    job = cache.plan("store", keys)
    assert cache.plan("load", keys) is None
    assert cache.plan("store", keys) is None
    assert cache.plan("store", keys_of(5, 9)) is None  # its slots are not for others before it ends
    assert cache.ledger.states(keys) == ["filling"] * 4
    cache.move(0, job, keys)
    cache.report(0, job)
    assert cache.load(keys) == keys


def test_what_ended_makes_room_though_nobody_waits_for_it():
    """The caller only ever looks up and stores."""
    tensor = np.zeros((8, 4096), np.uint8)
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=16, blocks_per_chunk=1)
    with kv.KVCache(layout, 4 * layout.groups[0].slot_bytes) as cache:
        for name in range(20):
            keys = keys_of(0, 4, name)
            cache.store(keys, [0, 1, 2, 3])
            until(lambda keys=keys: cache.lookup(keys).host == 4)
        cache.load(keys, [4, 5, 6, 7])
        until(lambda: cache.stats()["jobs_in_flight"] == 0)
        stats = cache.stats()
        assert (stats["stored_keys"], stats["evicted_keys"], stats["dropped_keys"]) == (80, 76, 0)


def until(done) -> None:
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_readers_of_all_slots_stop_stores_and_nothing_else(open_cache):
    """No wait for room that readers would have to make: stores are dropped, lookups and loads go on."""
    cache = open_cache(host=4, disk=16)
    cache.keep(keys_of(0, 4))
    with cache.ledger.hold(keys_of(0, 4)):
        assert cache.plan("store", keys_of(5, 9)) is None
        assert cache.ledger.stats()["dropped_keys"] == 4
        assert cache.load(keys_of(0, 4)) == keys_of(0, 4)
    assert len(cache.plan("store", keys_of(5, 9)).slots) == 4
