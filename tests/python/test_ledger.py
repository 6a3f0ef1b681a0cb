"""The ledger's promises one by one; test_ledger_model.py mixes them at random."""

from __future__ import annotations

import logging
import pickle
import threading

import pytest

from kvoffload.errors import InvalidInput
from kvoffload.ledger import Ledger
from kvoffload.messages import FinishedJob, Hello, Hit, Job, JobResult, Plan, Results

SLOT_BYTES = 4096


def make_keys(first: int, end: int) -> list[bytes]:
    return [i.to_bytes(32, "little") for i in range(first, end)]


def make_hello(rank: int = 0, slots: int = 8, **changes) -> Hello:
    values = {
        "slot_bytes": (SLOT_BYTES,),
        "blocks_per_chunk": (2,),
        "host_bytes": slots * SLOT_BYTES,
        "ready_bytes": slots * SLOT_BYTES,
        "fingerprint": "f",
        "pinned": False,
        "device": "host",
    }
    return Hello(rank=rank, **{**values, **changes})


def make_ledger(*, ranks: int = 1, slots: int = 8, **options) -> Ledger:
    ledger = Ledger(ranks=ranks, **options)
    for rank in range(ranks):
        ledger.hello(make_hello(rank, slots))
    return ledger


def report(ledger: Ledger, job: Job | None, *, rank: int = 0, ok: bool = True) -> list[FinishedJob]:
    assert job is not None
    return ledger.apply(Results(rank, (JobResult(job.id, ok, SLOT_BYTES, 0.001, "" if ok else "copy failed"),)))


def plan_store(ledger: Ledger, keys: list[bytes], group: int = 0) -> Job | None:
    return ledger.plan_store(keys, range(2 * len(keys)), group)


def store(ledger: Ledger, keys: list[bytes]) -> Job:
    job = plan_store(ledger, keys)
    assert report(ledger, job) == [FinishedJob(job.id, "store", True, False)]
    return job


def test_messages_survive_pickling_and_stay_small():
    job = Job(7, "load", 0, (1, 2), (3,), skip_blocks=1)
    plan = Plan(loads=(job,))
    assert pickle.loads(pickle.dumps(plan)) == plan
    results = Results(1, (JobResult(7, False, 0, 0.5, "copy failed"),), make_hello(1))
    assert pickle.loads(pickle.dumps(results)) == results
    assert len(pickle.dumps(Plan())) < 100


def test_nothing_is_served_before_every_rank_said_hello():
    ledger = Ledger(ranks=2)
    ledger.hello(make_hello(0))
    assert plan_store(ledger, make_keys(0, 2)) is None
    assert ledger.lookup(make_keys(0, 2)) == Hit(0, 0)
    assert ledger.states(make_keys(0, 1)) == ["absent"]
    assert ledger.hold(make_keys(0, 1)).keys_held == 0
    assert not ledger.stats()["serving"]
    assert ledger.apply(Results(1, hello=make_hello(1))) == []
    assert ledger.stats()["serving"]
    assert plan_store(ledger, make_keys(0, 2)).slots == (0, 1)
    assert ledger.stats()["dropped_keys"] == 2


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"slot_bytes": (8192,)}, ["rank 1", "(8192,)", "(4096,)"]),
        ({"blocks_per_chunk": (4,)}, ["rank 1", "(4,)", "(2,)"]),
        ({"host_bytes": 65536}, ["rank 1", "65536", "32768"]),
        ({"fingerprint": "g"}, ["rank 1", "fingerprint = g", "said f"]),
        ({"rank": 2}, ["rank 2", "0 to 1"]),
        ({"ready_bytes": 32769}, ["rank 1", "32769", "32768"]),
        ({"slot_bytes": ()}, ["rank 1", "at least one group"]),
        ({"slot_bytes": (0,)}, ["rank 1", "above 0"]),
    ],
)
def test_hello_that_does_not_fit_names_rank_and_values(changes, shown):
    ledger = Ledger(ranks=2)
    ledger.hello(make_hello(0))
    with pytest.raises(InvalidInput) as error:
        ledger.hello(make_hello(**{"rank": 1, **changes}))
    for text in shown:
        assert text in str(error.value)
    assert not ledger.stats()["serving"]


def test_tier_too_small_for_a_slot_is_an_error():
    with pytest.raises(InvalidInput, match=r"host = 4095 bytes.*at least 4096"):
        Ledger().hello(make_hello(host_bytes=4095, ready_bytes=4095))


def test_capacity_is_the_least_of_all_ranks_and_grows():
    ledger = Ledger(ranks=2)
    ledger.hello(make_hello(0, ready_bytes=3 * SLOT_BYTES))
    ledger.hello(make_hello(1, ready_bytes=2 * SLOT_BYTES))
    assert ledger.stats()["groups"][0]["capacity_slots"] == 2
    assert len(plan_store(ledger, make_keys(0, 5)).slots) == 2
    ledger.hello(make_hello(1))
    assert ledger.stats()["capacity_slots"] == 3
    ledger.hello(make_hello(0))
    assert ledger.stats()["capacity_slots"] == 8
    with pytest.raises(InvalidInput, match="rank 0: ready_bytes went from 32768 to 4096"):
        ledger.hello(make_hello(0, ready_bytes=SLOT_BYTES))


def test_late_failure_freezes_the_capacity_of_its_rank(caplog):
    ledger = Ledger(ranks=2)
    ledger.hello(make_hello(0, ready_bytes=2 * SLOT_BYTES))
    ledger.hello(make_hello(1))
    with caplog.at_level(logging.WARNING, "kvoffload"):
        ledger.hello(make_hello(0, ready_bytes=3 * SLOT_BYTES, failure="out of locked memory"))
        ledger.hello(make_hello(0))
    assert "rank 0" in caplog.text
    assert "out of locked memory" in caplog.text
    assert ledger.stats()["capacity_slots"] == 3
    ledger.hello(make_hello(0, ready_bytes=SLOT_BYTES, failure="again"))
    assert ledger.stats()["capacity_slots"] == 3


def test_store_takes_only_the_blocks_of_accepted_keys():
    ledger = make_ledger()
    store(ledger, make_keys(1, 2))
    job = ledger.plan_store(make_keys(0, 3), [10, 11, 20, 21, 30, 31])
    assert job.blocks == (10, 11, 30, 31)
    assert len(job.slots) == 2


@pytest.mark.parametrize("keys", [[b"short"], ["x" * 32], [bytearray(32)], [None], [b"y" * 32, b"z" * 15]])
def test_bad_keys_are_refused_with_their_index(keys):
    ledger = make_ledger()
    with pytest.raises(InvalidInput, match=rf"keys\[{len(keys) - 1}\].*at least 16"):
        ledger.lookup(keys)
    with pytest.raises(InvalidInput):
        plan_store(ledger, keys)
    assert ledger.stats()["used_bytes"] == 0


def test_bad_lengths_groups_and_skips_are_refused():
    ledger = make_ledger()
    with pytest.raises(InvalidInput, match=r"1 keys and 3 block ids.*2 block ids are needed"):
        ledger.plan_store(make_keys(0, 1), [1, 2, 3])
    for call in (ledger.lookup, ledger.states, ledger.hold, ledger.forget):
        with pytest.raises(InvalidInput, match=r"group = 1: .*groups 0 to 0"):
            call(make_keys(0, 1), 1)
    with pytest.raises(InvalidInput, match="skip_blocks = 2"):
        ledger.plan_load(make_keys(0, 1), [1, 2], skip_blocks=2)
    for options in ({"ranks": 0}, {"ranks": True}, {"deadline_seconds": 0}, {"deadline_seconds": float("nan")}):
        with pytest.raises(InvalidInput, match=next(iter(options))):
            Ledger(**options)


def test_load_needs_every_key_and_keeps_the_slots():
    ledger = make_ledger(slots=2)
    stored = store(ledger, make_keys(0, 2))
    assert ledger.plan_load(make_keys(0, 3), range(6)) is None
    job = ledger.plan_load(make_keys(0, 2), range(4), skip_blocks=1)
    assert (job.kind, job.slots, job.blocks, job.skip_blocks) == ("load", stored.slots, (0, 1, 2, 3), 1)
    assert plan_store(ledger, make_keys(5, 7)) is None
    assert ledger.stats()["dropped_keys"] == 2
    report(ledger, job)
    assert len(plan_store(ledger, make_keys(5, 7)).slots) == 2
    assert ledger.stats()["evicted_keys"] == 2


def test_unused_hits_do_not_leak_readers():
    """Lookups that are not followed by a load, and holds released twice, leave nothing behind."""
    ledger = make_ledger()
    store(ledger, make_keys(0, 8))
    for _ in range(100):
        ledger.lookup(make_keys(0, 8))
        with ledger.hold(make_keys(0, 9)) as hold:
            assert hold.keys_held == 8
        hold.release()
    assert ledger.stats()["holds"] == 0
    assert len(plan_store(ledger, make_keys(10, 18)).slots) == 8
    ledger.check()


def test_held_keys_survive_reset_only_as_slots():
    ledger = make_ledger()
    store(ledger, make_keys(0, 2))
    hold = ledger.hold(make_keys(0, 2))
    ledger.reset()
    assert ledger.lookup(make_keys(0, 2)).host == 0
    assert ledger.stats()["free_slots"] == 6
    hold.release()
    assert ledger.stats()["free_slots"] == 8
    assert ledger.stats()["epoch"] == 1


def test_deadline_with_a_rank_that_never_reports(caplog):
    now = [100.0]
    ledger = make_ledger(ranks=2, slots=20, deadline_seconds=5, clock=lambda: now[0])
    job = plan_store(ledger, make_keys(0, 2))
    report(ledger, job, rank=0)
    now[0] = 104.9
    assert ledger.expire() == []
    now[0] = 105.0
    with caplog.at_level(logging.WARNING, "kvoffload"):
        assert ledger.expire() == [FinishedJob(job.id, "store", False, False)]
        ledger.expire()
        ledger.lookup(make_keys(0, 2))
    assert [record.message[:13] for record in caplog.records] == ["host tier off"]
    stats = ledger.stats()
    assert stats["tier_off"]
    assert stats["quarantined_bytes"] == 2 * SLOT_BYTES
    assert plan_store(ledger, make_keys(5, 6)) is None

    caplog.clear()
    with caplog.at_level(logging.WARNING, "kvoffload"):
        assert report(ledger, job, rank=1) == [FinishedJob(job.id, "store", False, True)]
    assert [record.message[:12] for record in caplog.records] == ["host tier on"]
    stats = ledger.stats()
    assert (stats["late_reports"], stats["failed_jobs"], stats["failed_keys"]) == (1, 1, 2)
    assert (stats["free_slots"], stats["quarantined_bytes"], stats["stored_keys"]) == (20, 0, 0)
    assert ledger.lookup(make_keys(0, 2)).host == 0


def test_unknown_and_repeated_reports_are_counted():
    ledger = make_ledger(ranks=2)
    job = plan_store(ledger, make_keys(0, 1))
    report(ledger, job, rank=0)
    report(ledger, job, rank=0)
    ledger.apply(Results(7, (JobResult(job.id, True, 0, 0.0),)))
    ledger.apply(Results(0, (JobResult(999, True, 0, 0.0),)))
    assert ledger.stats()["unknown_reports"] == 3
    assert ledger.lookup(make_keys(0, 1)).host == 0


def test_first_failure_is_logged_with_its_reason(caplog):
    ledger = make_ledger()
    with caplog.at_level(logging.WARNING, "kvoffload"):
        for i in range(3):
            report(ledger, plan_store(ledger, make_keys(i, i + 1)), ok=False)
    assert [record.message.split(";")[0] for record in caplog.records] == ["job 1 failed on rank 0: copy failed"]
    assert ledger.stats()["failed_jobs"] == 3


def test_abandoned_plan_leaves_nothing():
    ledger = make_ledger()
    job = plan_store(ledger, make_keys(0, 2))
    ledger.abandon(job.id)
    assert ledger.states(make_keys(0, 2)) == ["absent", "absent"]
    assert ledger.stats()["free_slots"] == 8
    with pytest.raises(InvalidInput, match=f"job {job.id} is not in flight"):
        ledger.abandon(job.id)


def test_counters_after_a_known_trace():
    ledger = make_ledger(slots=4)
    store(ledger, make_keys(0, 3))
    ledger.lookup(make_keys(0, 5))
    report(ledger, plan_store(ledger, make_keys(2, 6)))  # 2 is known, 3 gets the free slot, 4 and 5 evict 1 and 0
    report(ledger, ledger.plan_load(make_keys(2, 4), range(4)))
    ledger.forget(make_keys(2, 3))
    expected = {
        "lookup_keys": 5, "hit_keys": 3, "accepted_keys": 6, "skipped_keys": 1, "dropped_keys": 0, "stored_keys": 6,
        "evicted_keys": 2, "failed_keys": 0, "forgotten_keys": 1, "store_jobs": 2, "load_jobs": 1, "failed_jobs": 0,
        "jobs_in_flight": 0, "ready_keys": 3, "filling_keys": 0, "free_slots": 1, "used_bytes": 3 * SLOT_BYTES,
    }  # fmt: skip
    stats = ledger.stats()
    assert {name: stats[name] for name in expected} == expected


def test_a_hello_that_is_refused_does_not_take_results_with_it(caplog):
    ledger = make_ledger()
    keys = make_keys(0, 3)
    for first in range(2):
        job = plan_store(ledger, keys[first : first + 1])
        results = Results(0, (JobResult(job.id, ok=True, bytes=1, seconds=0.0),), make_hello(ready_bytes=0))
        assert ledger.apply(results) == [FinishedJob(job.id, "store", ok=True, late=False)]
    assert ledger.lookup(keys).host == 2
    assert ledger.stats()["ready_bytes"] == 8 * SLOT_BYTES
    said = [text for text in caplog.messages if "ready_bytes went" in text]
    assert len(said) == 1 and said[0].endswith("it is ignored")


def test_numpy_block_ids_become_plain_ints():
    numpy = pytest.importorskip("numpy")
    job = make_ledger().plan_store(make_keys(0, 1), numpy.array([3, 4]))
    assert job.blocks == (3, 4)
    assert type(job.blocks[0]) is int


def test_threads_share_a_ledger():
    """Long key lists release the GIL, so calls really overlap."""
    ledger = make_ledger(slots=1000)
    errors = []

    def work(first: int) -> None:
        try:
            for i in range(40):
                keys = make_keys(first + i, first + i + 200)
                job = plan_store(ledger, keys)
                if job is not None:
                    report(ledger, job, ok=i % 7 != 0)
                with ledger.hold(keys) as hold:
                    ledger.lookup(keys[: hold.keys_held])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    ledger.check()
    stats = ledger.stats()
    assert stats["jobs_in_flight"] == 0
    assert stats["ready_keys"] * SLOT_BYTES == stats["used_bytes"]
