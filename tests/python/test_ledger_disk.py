"""Keys on disk: what the ledger plans, what its manifest is told and when, and what a restart knows. The bytes
themselves are no matter of the ledger, so a dict stands in for a rank's files."""

import dataclasses

import pytest

from kvoffload import _C
from kvoffload.errors import InvalidInput
from kvoffload.ledger import Ledger
from kvoffload.messages import Hello, Hit, JobResult, Results

SLOT_BYTES, HOST_SLOTS, DISK_SLOTS = 4096, 4, 8


def keys_of(start, end):
    return [i.to_bytes(32, "big") for i in range(start, end)]


def open_manifest(folder):
    return _C.Manifest(str(folder), "0123456789abcdef", [DISK_SLOTS], sync_seconds=0.05)


def hello(manifest, rank=0, **changes):
    told = Hello(
        rank=rank, slot_bytes=(SLOT_BYTES,), blocks_per_chunk=(1,), host_bytes=HOST_SLOTS * SLOT_BYTES,
        ready_bytes=HOST_SLOTS * SLOT_BYTES, fingerprint="f", pinned=False, device="host",
        disk_bytes=DISK_SLOTS * SLOT_BYTES, slab_identity=manifest.identity,
    )  # fmt: skip
    return dataclasses.replace(told, **changes)


class Cache:
    """A ledger whose one rank does at once what it is told; `disk[slot]` is the key of the record there."""

    def __init__(self, folder, disk=None, **hello_changes):
        self.manifest = open_manifest(folder)
        self.ledger = Ledger(manifest=self.manifest)
        self.disk = {} if disk is None else disk
        self.ledger.hello(hello(self.manifest, **hello_changes))

    def done(self, job, **changes):
        if job is not None:
            self.ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0, **changes),)))

    def store(self, keys):
        self.done(self.ledger.plan_store(keys, [0] * len(keys)))

    def demote(self, most=100):
        job = self.ledger.plan_demote(most)
        for slot, key in zip(job.disk_slots, job.keys, strict=True):
            self.disk[slot] = key
        self.done(job)
        return job

    def promote(self, keys):
        """The keys whose records verified."""
        job = self.ledger.plan_promote(keys)
        if job is None:
            return []
        wrong = tuple(i for i, slot in enumerate(job.disk_slots) if self.disk.get(slot) != job.keys[i])
        self.done(job, failed=wrong)
        return [key for i, key in enumerate(job.keys) if i not in wrong]

    def close(self):
        self.ledger.check()
        self.manifest.close(5)
        return self.disk


def test_a_restart_knows_what_was_committed(tmp_path):
    cache = Cache(tmp_path)
    cache.store(keys_of(0, 4))
    first = cache.demote(3)
    assert first.keys == tuple(keys_of(0, 3)) and first.sequence == 1
    disk = cache.close()
    again = Cache(tmp_path, disk)
    assert again.ledger.lookup(keys_of(0, 5)) == Hit(0, 3)
    assert again.promote(keys_of(0, 5)) == keys_of(0, 3)
    assert again.ledger.lookup(keys_of(0, 5)) == Hit(3, 0)
    again.store(keys_of(10, 11))
    assert again.demote().sequence > first.sequence + 2
    again.close()


def test_a_slot_that_is_written_anew_counts_for_nothing_until_it_is_committed(tmp_path):
    cache = Cache(tmp_path)
    for start in range(0, DISK_SLOTS, HOST_SLOTS):
        cache.store(keys_of(start, start + HOST_SLOTS))
        cache.demote()
    cache.store(keys_of(20, 22))
    job = cache.ledger.plan_demote(100)  # overwrites two records, and is never heard of again
    lost = {cache.disk[slot] for slot in job.disk_slots}
    disk = cache.close()
    again = Cache(tmp_path, disk)
    known = {key for key in keys_of(0, DISK_SLOTS) if again.ledger.lookup([key]).disk}
    assert known == set(keys_of(0, DISK_SLOTS)) - lost
    assert not any(again.ledger.lookup([key]).disk for key in keys_of(20, 22))
    again.close()


class Told:
    """A manifest that only remembers what it was told, in order."""

    identity, first_sequence = 7, 1

    def __init__(self):
        self.calls = []

    def take_opening(self):
        return {"chunks": [], "not_believed": ""}

    def stats(self):
        return {"epoch": 3}

    def free(self, group, slots):
        self.calls.append(("free", group, list(slots)))

    def commit(self, epoch, group, keys, slots, sequences):
        self.calls.append(("commit", epoch, group, list(keys), list(slots), list(sequences)))

    def reset(self, timeout_seconds):
        self.calls.append(("reset",))


def told_ledger(ranks=1, ledger_options=None, **changes):
    manifest = Told()
    ledger = Ledger(manifest=manifest, ranks=ranks, **(ledger_options or {}))
    for rank in range(ranks):
        ledger.hello(hello(manifest, rank, **changes))
    return ledger, manifest


def done(ledger, job):
    if job is not None:
        ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0),)))


def test_free_comes_before_the_plan_and_commit_after_the_last_rank():
    ledger, manifest = told_ledger(ranks=2)

    def both(job):
        for rank in range(2):
            ledger.apply(Results(rank, (JobResult(job.id, True, 0, 0.0),)))

    for start in range(0, DISK_SLOTS, HOST_SLOTS):
        both(ledger.plan_store(keys_of(start, start + HOST_SLOTS), [0] * HOST_SLOTS))
        both(ledger.plan_demote(100))
    both(ledger.plan_store(keys_of(30, 31), [0]))
    manifest.calls.clear()
    job = ledger.plan_demote(100)
    assert manifest.calls == [("free", 0, list(job.disk_slots))]
    ledger.apply(Results(1, (JobResult(job.id, True, 0, 0.0),)))
    assert len(manifest.calls) == 1
    ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0),)))
    assert manifest.calls[1:] == [("commit", 3, 0, keys_of(30, 31), list(job.disk_slots), [job.sequence])]
    assert job.epoch == 3


def test_a_record_that_does_not_verify_is_freed(tmp_path):
    cache = Cache(tmp_path)
    cache.store(keys_of(0, 3))
    cache.demote()
    cache.store(keys_of(10, 14))
    cache.disk[1] = b"torn"
    assert cache.promote(keys_of(0, 3)) == [keys_of(0, 1)[0], keys_of(2, 3)[0]]
    assert cache.ledger.lookup(keys_of(0, 3)) == Hit(1, 0)
    disk = cache.close()
    again = Cache(tmp_path, disk)
    assert again.ledger.lookup(keys_of(1, 2)) == Hit(0, 0)
    again.close()


def test_one_ranks_slab_that_is_not_the_manifests_drops_all_on_all(tmp_path, caplog):
    cache = Cache(tmp_path)
    cache.store(keys_of(0, 2))
    cache.demote()
    cache.close()
    for _ in range(2):  # also after the next restart
        with caplog.at_level("WARNING", logger="kvoffload"):
            again = Cache(tmp_path, {}, slab_identity=0)
        assert again.ledger.lookup(keys_of(0, 2)) == Hit(0, 0)
        again.close()
    assert "rank 0 has not the files" in caplog.text and caplog.text.count("dropped on all ranks") == 1


def test_reset_is_for_good(tmp_path):
    cache = Cache(tmp_path)
    cache.store(keys_of(0, 2))
    cache.demote()
    cache.ledger.reset()
    assert cache.ledger.lookup(keys_of(0, 2)) == Hit(0, 0)
    cache.store(keys_of(5, 6))
    cache.demote()
    disk = cache.close()
    again = Cache(tmp_path, disk)
    assert again.ledger.lookup(keys_of(0, 2)) == Hit(0, 0)
    assert again.ledger.lookup(keys_of(5, 6)) == Hit(0, 1)
    again.close()


def test_a_reset_before_the_ranks_have_said_hello_counts_too(tmp_path):
    cache = Cache(tmp_path)
    cache.store(keys_of(0, 2))
    cache.demote()
    cache.close()
    manifest = open_manifest(tmp_path)
    ledger = Ledger(manifest=manifest)
    ledger.reset()
    ledger.hello(hello(manifest))
    assert ledger.lookup(keys_of(0, 2)) == Hit(0, 0)
    manifest.close(5)


def test_without_files_there_is_no_disk():
    ledger, manifest = told_ledger(disk_bytes=0)
    job = ledger.plan_store(keys_of(0, 1), [0])
    ledger.apply(Results(0, (JobResult(job.id, True, 0, 0.0),)))
    assert ledger.plan_demote(10) is None and ledger.plan_promote(keys_of(0, 1)) is None
    assert manifest.calls == [] and not ledger.stats()["disk"]["serving"]


def test_admission_and_the_days_writes_by_their_names():
    with pytest.raises(InvalidInput, match="all, second_touch, tinylfu"):
        Ledger(admission="often")
    for wrong in (0, -1, True, "12 parsecs", 0.5):
        with pytest.raises(InvalidInput, match="disk_writes_per_day"):
            Ledger(disk_writes_per_day=wrong)
    with pytest.raises(InvalidInput, match=f"disk_writes_per_day = 4096 bytes.*at least {24 * SLOT_BYTES}"):
        told_ledger(ledger_options={"disk_writes_per_day": "4KiB"})


def test_keys_asked_for_again_go_to_disk():
    ledger, _ = told_ledger(ledger_options={"admission": "second_touch"})
    done(ledger, ledger.plan_store(keys_of(0, 4), [0] * 4))
    assert ledger.plan_demote(100) is None
    ledger.lookup(keys_of(0, 2))
    assert ledger.plan_demote(100).keys == tuple(keys_of(0, 2))


def test_keys_used_less_than_what_would_go_stay_off_a_full_disk():
    ledger, _ = told_ledger(ledger_options={"admission": "tinylfu"})
    for start in range(0, DISK_SLOTS, HOST_SLOTS):
        for _ in range(2):
            done(ledger, ledger.plan_store(keys_of(start, start + HOST_SLOTS), [0] * HOST_SLOTS))
        done(ledger, ledger.plan_demote(100))
    done(ledger, ledger.plan_store(keys_of(30, 31), [0]))
    assert ledger.plan_demote(100) is None and ledger.stats()["unadmitted_keys"] == 1
    ledger.lookup(keys_of(30, 31))
    assert ledger.plan_demote(100).keys == tuple(keys_of(30, 31))


def test_no_more_goes_to_disk_than_the_day_allows():
    now = [1000.0]
    options = {"disk_writes_per_day": f"{24 * 2 * SLOT_BYTES // 1024}KiB", "clock": lambda: now[0]}
    ledger, _ = told_ledger(ledger_options=options)
    done(ledger, ledger.plan_store(keys_of(0, 3), [0] * 3))
    assert ledger.plan_demote(100).keys == tuple(keys_of(0, 2))  # an hour's share
    stats = ledger.stats()
    assert (stats["over_budget_keys"], stats["undemoted_keys"], stats["waiting_for_disk_keys"]) == (1, 0, 0)
    done(ledger, ledger.plan_store(keys_of(3, 4), [0]))
    now[0] += 3600
    assert ledger.plan_demote(100).keys == tuple(keys_of(3, 4))
