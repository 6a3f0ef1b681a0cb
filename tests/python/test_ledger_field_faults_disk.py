"""Faults of other systems in the field, as tests of the ledger: little room, shared chunks, restarts, neighbours."""

from __future__ import annotations

import resource
import threading
from collections import Counter, deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ledger_cache import SLOT_BYTES, Cache, keys_of, run_threads

from kvoffload import _C
from kvoffload.errors import InvalidInput
from kvoffload.messages import Hit


@pytest.fixture
def open_cache(tmp_path):
    return partial(Cache, tmp_path)


# More than there is room for


def test_a_host_tier_far_smaller_than_the_traffic_goes_on_taking_it(open_cache):
    """10,000 keys through 16 host and 64 disk slots: every store is taken and nothing grows, the manifest neither."""
    cache = open_cache(host=16, disk=64)

    def traffic(first: int, end: int) -> None:
        for i in range(first, end, 8):
            cache.keep(keys_of(i, i + 8))
            cache.ledger.lookup(keys_of(i - 40, i - 32))
            cache.run("promote", keys_of(i - 40, i - 32))

    traffic(0, 2000)
    before = resident_bytes()
    traffic(2000, 10_000)
    assert resident_bytes() - before < 20 << 20
    stats = cache.ledger.stats()
    assert (stats["stored_keys"], stats["dropped_keys"], stats["demoted_keys"]) == (10_000, 0, 10_000)
    assert stats["promoted_keys"] > 1000
    assert cache.manifest.stats()["bytes"] < 4 << 20
    assert cache.idle()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_what_waits_for_a_disk_that_nobody_serves_is_bounded(open_cache):
    """Keys that wait to be written hold no slot, and those whose turn comes too late are counted."""
    cache = open_cache(host=16)
    for first in range(0, 4000, 16):
        assert len(cache.run("store", keys_of(first, first + 16)).slots) == 16
    assert cache.ledger.stats()["waiting_for_disk_keys"] == 4000
    job = cache.run("demote", keys_of(0, 8))
    assert job.keys == tuple(keys_of(3984, 3992))
    assert cache.ledger.stats()["undemoted_keys"] == 3984


def test_demotions_that_never_end_stop_at_the_slots_there_are(open_cache):
    cache = open_cache(host=32, disk=8)
    cache.run("store", keys_of(0, 32))
    jobs = [job for _ in range(32) if (job := cache.plan("demote", keys_of(0, 1)))]
    assert len(jobs) == 8
    assert cache.ledger.stats()["waiting_for_disk_keys"] == 24
    assert cache.load(keys_of(0, 32)) == keys_of(0, 32)
    assert len(cache.run("store", keys_of(100, 124)).slots) == 24  # all but what is being written makes room


# Both tiers at once, many callers


def test_a_batch_that_shares_keys_with_others_does_not_fail_for_it(open_cache):
    """16 threads store 32 keys each, eight of them the same: all are taken, the shared ones once; to disk likewise."""
    cache = open_cache(host=512, disk=512)
    shared = keys_of(0, 8, "shared")
    errors = []

    def work(thread: int) -> None:
        keys = [*shared[: thread % 4], *keys_of(0, 24, thread), *shared[thread % 4 :]]
        try:
            cache.run("store", keys)
            cache.run("demote", keys)
        except Exception as error:
            errors.append(error)

    run_threads(work, 16)
    cache.run("demote", keys_of(0, 512))
    assert errors == []
    stats = cache.ledger.stats()
    once = 16 * 24 + 8
    assert (stats["accepted_keys"], stats["stored_keys"], stats["skipped_keys"]) == (once, once, 15 * 8)
    assert (stats["demoted_keys"], stats["dropped_keys"], stats["failed_keys"]) == (once, 0, 0)
    assert sorted(cache.slabs[0].values()) == sorted([*shared, *(key for i in range(16) for key in keys_of(0, 24, i))])
    assert cache.idle()


def test_what_was_just_promoted_is_read_before_it_goes(open_cache):
    """Four requests of four disk blocks in eight host slots, in turns: each record is read once."""
    cache = open_cache(host=8, disk=16)
    requests = [keys_of(0, 4, name) for name in range(4)]
    for keys in requests:
        cache.keep(keys)
    cache.ledger.forget([])
    cache.run("store", keys_of(0, 8, "others"))
    waiting, held, reads = deque(requests), deque(), Counter()
    while waiting or held:
        for keys in list(waiting):
            job = cache.run("promote", keys)
            reads.update(job.keys if job else ())
            if cache.ledger.lookup(keys).host == 4:
                waiting.remove(keys)
                held.append((keys, cache.ledger.hold(keys)))
        keys, hold = held.popleft()
        assert cache.load(keys) == keys
        hold.release()
    assert set(reads.values()) == {1} and len(reads) == 16
    assert cache.idle()


def test_a_cap_is_a_cap(open_cache):
    """Five times the disk's size is written: never more slots than it has, then fewer after a restart with less."""
    cache = open_cache(host=8, disk=16)
    for first in range(0, 80, 8):
        cache.keep(keys_of(first, first + 8))
    assert set(cache.slabs[0]) == set(range(16))
    assert cache.ledger.stats()["disk"]["used_bytes"] == 16 * SLOT_BYTES
    slabs = cache.close()
    less = open_cache(host=8, disk=5, slabs=slabs)
    assert less.ledger.stats()["disk"]["ready_keys"] == 5
    for first in range(100, 140, 8):
        less.run("store", keys_of(first, first + 8))
        assert set(less.run("demote", keys_of(first, first + 8)).disk_slots) <= set(range(5))
    assert less.ledger.stats()["disk"]["used_bytes"] == 5 * SLOT_BYTES


# Restarts, upgrades, others


def test_a_hundred_chunks_are_hits_from_disk_after_a_restart(open_cache):
    cache = open_cache(host=10, disk=100)
    for first in range(0, 100, 10):
        cache.keep(keys_of(first, first + 10))
    again = open_cache(host=10, disk=100, slabs=cache.close())
    assert again.ledger.lookup(keys_of(0, 100)) == Hit(0, 100)
    for first in range(0, 100, 10):
        again.run("promote", keys_of(first, first + 10))
        assert again.load(keys_of(first, first + 10)) == keys_of(first, first + 10)
    assert again.ledger.stats()["demote_jobs"] == 0  # they are there already


def test_a_reset_hides_what_is_in_flight_in_every_tier_for_ever(open_cache):
    """New weights: what the old ones computed is on its way to host memory, to disk and back."""
    cache = open_cache(host=12, disk=16)
    cache.keep(keys_of(0, 4))
    cache.run("store", keys_of(100, 112))
    cache.ledger.forget(keys_of(100, 112))
    cache.run("store", keys_of(4, 8))
    jobs = [
        cache.plan("promote", keys_of(0, 4)),
        cache.plan("demote", keys_of(4, 8)),
        cache.plan("store", keys_of(8, 12)),
    ]
    cache.ledger.reset()
    for job, first in zip(jobs, (0, 4, 8), strict=True):
        cache.report(0, job, failed=cache.move(0, job, keys_of(first, first + 4)))
    everything = [[key] for key in keys_of(0, 12)]
    assert {cache.ledger.lookup(keys) for keys in everything} == {Hit(0, 0)}
    cache.keep(keys_of(0, 2))  # by the new ones
    again = open_cache(slabs=cache.close())
    hits = [again.ledger.lookup(keys) for keys in everything]
    assert hits == [Hit(0, 1)] * 2 + [Hit(0, 0)] * 10


class ResetMeanwhile:
    """A manifest with a thread that resets the ledger once what was found has been taken and is not yet ready."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.thread = threading.Thread(target=lambda: cache.ledger.reset())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache.manifest, name)

    def take_opening(self) -> dict[str, Any]:
        opening = self.cache.manifest.take_opening()
        if opening["chunks"]:
            self.thread.start()
            self.thread.join(0.2)  # or it waits for its turn
        return opening


def test_a_reset_while_a_restart_makes_its_chunks_ready_hides_them(open_cache):
    cache = open_cache()
    cache.keep(keys_of(0, 4))
    again = open_cache(slabs=cache.close(), through=ResetMeanwhile)
    again.through.thread.join()
    assert again.ledger.lookup(keys_of(0, 4)) == Hit(0, 0)
    again.keep(keys_of(4, 6))
    assert open_cache(slabs=again.close()).ledger.lookup(keys_of(4, 6)) == Hit(0, 2)


def test_another_model_finds_nothing_in_the_files_of_this_one(tmp_path):
    """Same bytes, same slots; but weights, layout or ranks are others. Nor does the first one when it comes back."""
    cache = Cache(tmp_path)
    cache.keep(keys_of(0, 4))
    cache.close()
    for fingerprint in ("another model", "a model"):
        manifest = _C.Manifest(str(tmp_path), fingerprint, [16], sync_seconds=60)
        assert manifest.take_opening()["chunks"] == []
        manifest.close(60)


def test_engines_and_ranks_that_share_a_directory_have_places_of_their_own(tmp_path):
    leaves = [(dp, leaf) for dp in range(2) for leaf in ("ledger", "rank0", "rank1")]
    directories = [_C.NamespaceDir(str(tmp_path), "fingerprint", dp, leaf, 10) for dp, leaf in leaves]
    assert len({directory.path for directory in directories}) == len(leaves)
    for dp, leaf in leaves:
        with pytest.raises(InvalidInput, match="in use by process"):
            _C.NamespaceDir(str(tmp_path), "fingerprint", dp, leaf, 0)


def test_a_file_removed_from_outside_is_a_miss_and_no_error(open_cache, tmp_path):
    cache = open_cache()
    cache.keep(keys_of(0, 4))
    (tmp_path / "manifest").unlink()
    cache.keep(keys_of(4, 8))
    assert cache.ledger.lookup(keys_of(0, 8)) == Hit(8, 0)
    cache.ledger.forget(keys_of(0, 2))
    again = open_cache(slabs=cache.close())
    assert again.ledger.lookup(keys_of(0, 1)) == Hit(0, 0)
    again.keep(keys_of(0, 4))
    assert open_cache(slabs=again.close()).ledger.lookup(keys_of(0, 4)) == Hit(0, 4)
