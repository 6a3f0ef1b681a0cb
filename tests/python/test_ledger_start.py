"""From a manifest to keys that can be served: what comes before all ranks have said hello, a medium that is too slow
for the first reset, which of the keys found goes first. And many threads leave manifest and directory of one mind."""

import contextlib
import random
import threading

import pytest
from test_ledger_disk import DISK_SLOTS, HOST_SLOTS, Cache, Told, done, hello, keys_of, open_manifest, told_ledger

from kvoffload import ledger_disk
from kvoffload.errors import WaitTimeout
from kvoffload.ledger import Ledger
from kvoffload.ledger_disk import LedgerDir
from kvoffload.messages import Hello, Hit, JobResult, Results


class Slow(Told):
    """No reset ends in time. `done_meanwhile`: it has when somebody looks."""

    def __init__(self, done_meanwhile=False):
        super().__init__()
        self.epoch, self.done_meanwhile = 3, done_meanwhile

    def stats(self):
        return {"epoch": self.epoch}

    def reset(self, timeout_seconds):
        super().reset(timeout_seconds)
        self.epoch += self.done_meanwhile
        raise WaitTimeout("the disk holds it up")


@pytest.mark.parametrize("done_meanwhile", [False, True])
def test_a_reset_that_is_given_up_before_the_first_hello_is_an_epoch_all_the_same(done_meanwhile):
    manifest = Slow(done_meanwhile)
    ledger = Ledger(manifest=manifest)
    with pytest.raises(WaitTimeout):
        ledger.reset()
    ledger.hello(hello(manifest))
    done(ledger, ledger.plan_store(keys_of(0, 1), [0]))
    job = ledger.plan_demote(1)
    done(ledger, job)
    assert job.epoch == ledger.stats()["epoch"] == 4
    assert manifest.calls == [("reset",), ("commit", 4, 0, keys_of(0, 1), [0], [1])]


def test_the_manifest_comes_to_the_epoch_of_a_reset_that_was_given_up(tmp_path):
    manifest = open_manifest(tmp_path)
    ledger = Ledger(manifest=manifest)
    with contextlib.suppress(WaitTimeout):  # hardly ever not raised
        ledger.reset(0)
    ledger.hello(hello(manifest))
    manifest.flush(5)  # behind the reset
    done(ledger, ledger.plan_store(keys_of(0, 1), [0]))
    done(ledger, ledger.plan_demote(1))
    stats = manifest.stats()
    assert (stats["commits"], stats["stale_commits"]) == (1, 0)
    manifest.close(5)


def test_a_slow_medium_does_not_keep_host_memory_from_serving(caplog):
    """A slab that is not the manifest's needs a new epoch, and that may take long."""
    manifest = Slow()
    ledger = Ledger(manifest=manifest)
    ledger.hello(hello(manifest, slab_identity=1))
    assert manifest.calls == [("reset",)] and "the disk holds it up" in caplog.text
    done(ledger, ledger.plan_store(keys_of(0, 1), [0]))
    assert ledger.lookup(keys_of(0, 1)) == Hit(1, 0)
    assert ledger.plan_demote(1).epoch == 4


def test_what_is_forgotten_before_the_first_hello_does_not_come_back(tmp_path):
    cache = Cache(tmp_path)
    cache.store(keys_of(0, 3))
    cache.demote()
    cache.close()
    manifest = open_manifest(tmp_path)
    ledger = Ledger(manifest=manifest)
    assert ledger.forget([*keys_of(1, 2) * 2, *keys_of(7, 8)]) == 1
    assert ledger.forget(keys_of(0, 3), group=1) == 0
    ledger.hello(hello(manifest))
    assert [ledger.lookup([key]).disk for key in keys_of(0, 3)] == [1, 0, 1]
    assert ledger.forget(keys_of(0, 2)) == 1
    manifest.close(5)
    again = open_manifest(tmp_path)
    assert [chunk[1] for chunk in again.take_opening()["chunks"]] == keys_of(2, 3)
    again.close(5)


@pytest.mark.parametrize("policy", ["lru", "adaptive", "s3fifo", "arc"])
def test_after_a_restart_the_end_of_what_was_written_first_goes_first(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(ledger_disk, "RUN_KEYS", HOST_SLOTS)
    cache = Cache(tmp_path)
    for start in range(0, DISK_SLOTS, HOST_SLOTS):
        cache.store(keys_of(start, start + HOST_SLOTS))
        cache.demote()
    cache.close()
    manifest = open_manifest(tmp_path)
    ledger = Ledger(manifest=manifest, policy=policy)
    ledger.hello(hello(manifest))
    done(ledger, ledger.plan_store(keys_of(20, 22), [0] * 2))
    done(ledger, ledger.plan_demote(2))
    gone = [key for key in keys_of(0, DISK_SLOTS) if not ledger.lookup([key]).disk]
    assert gone == keys_of(HOST_SLOTS - 2, HOST_SLOTS)
    manifest.close(5)


def test_a_disk_that_is_switched_off_is_said_once(caplog):
    now = [0.0]
    ledger, _ = told_ledger(ledger_options={"clock": lambda: now[0]})
    done(ledger, ledger.plan_store(keys_of(0, 1), [0]))
    job = ledger.plan_demote(1)
    now[0] = 100.0
    for _ in range(2):
        ledger.expire()
    assert ledger.stats()["disk"]["tier_off"] and caplog.text.count("disk tier off") == 1
    done(ledger, job)
    assert not ledger.stats()["disk"]["tier_off"] and caplog.text.count("disk tier on again") == 1


SLOT_BYTES, HOST_BYTES, DISK_BYTES = (4096, 8192), 96 * 4096, 160 * 4096
KEYS = keys_of(0, 300)
CALLS = 500


class Caller(threading.Thread):
    """Does this and that with a ledger of two groups; one rank that at times fails."""

    def __init__(self, ledger, seed, resets):
        super().__init__()
        self.ledger, self.random, self.resets, self.error = ledger, random.Random(seed), resets, None

    def run(self):
        try:
            for _ in range(CALLS):
                self.call()
            if self.resets:
                self.ledger.reset()
            for _ in range(CALLS):
                self.call()
        except BaseException as error:
            self.error = error

    def call(self):
        group, start, count = (self.random.randrange(most) for most in (2, 280, 12))
        keys = KEYS[start : start + count]
        what = self.random.choice(["store"] * 8 + ["demote"] * 6 + ["promote"] * 3 + ["forget", "lookup"])
        if what == "store":
            self.end(self.ledger.plan_store(keys, [0] * len(keys), group))
        elif what == "demote":
            self.end(self.ledger.plan_demote(count, group))
        elif what == "promote":
            self.end(self.ledger.plan_promote(keys, group))
        elif what == "forget":
            self.ledger.forget(keys[:2], group)
        else:
            self.ledger.lookup(keys, group)

    def end(self, job):
        if job is None:
            return
        how = self.random.randrange(6)
        if how == 0:
            self.ledger.abandon(job.id)
        else:
            failed = (0,) if how == 1 else ()
            self.ledger.apply(Results(0, (JobResult(job.id, how != 2, 0, 0.0, failed=failed),)))


@pytest.mark.parametrize("resets", [False, True])
def test_many_threads_leave_manifest_and_directory_of_one_mind(tmp_path, resets, monkeypatch):
    monkeypatch.setattr("kvoffload.ledger_disk.manifest_bytes", lambda *_: 1 << 24)  # else it may drop commits

    def open_directory():
        return LedgerDir(str(tmp_path), "0123456789abcdef", 0, disk_bytes=DISK_BYTES, slot_bytes=SLOT_BYTES)

    directory = open_directory()
    ledger = Ledger(manifest=directory.manifest)
    ledger.hello(
        Hello(
            rank=0, slot_bytes=SLOT_BYTES, blocks_per_chunk=(1, 1), host_bytes=HOST_BYTES, ready_bytes=HOST_BYTES,
            fingerprint="f", pinned=False, device="host", disk_bytes=DISK_BYTES,
            slab_identity=directory.manifest.identity,
        )
    )  # fmt: skip
    callers = [Caller(ledger, seed, resets) for seed in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [caller.error for caller in callers] == [None] * len(callers)
    ledger.check()
    known = {}
    for group in range(len(SLOT_BYTES)):
        states = ledger._directory.states(group, KEYS, True)
        known.update({(group, key): None for key, state in zip(KEYS, states, strict=True) if state == "ready"})
        for key in KEYS:
            job = ledger.plan_promote([key], group)
            if job is not None:
                known[group, key] = job.disk_slots[0]
                ledger.abandon(job.id)
    directory.close(10)
    directory = open_directory()
    found = {(group, key): slot for group, key, slot, _ in directory.manifest.take_opening()["chunks"]}
    # What was committed while the manifest was still about to begin an epoch is not kept.
    assert found.keys() <= known.keys() if resets else found and found.keys() == known.keys()
    assert all(known[name] in (None, slot) for name, slot in found.items())
    directory.close(10)
