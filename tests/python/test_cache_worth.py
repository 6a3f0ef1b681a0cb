"""KVCache leaves out of a hit what takes longer to load than to compute."""

import pytest
from test_cache_disk import HOST_KEYS, KEYS, Rig

import kvoffload as kv
from kvoffload import _C
from kvoffload.prefill import LEAST_SAMPLES
from kvoffload.worth import TRY_ONE_IN

DISK_KEYS = 8
TOKENS = 16  # of a key


@pytest.fixture(autouse=True)
def _no_faults_left():
    yield
    _C.fault_disarm_all()


class SlowRig(Rig):
    """The first keys are on disk alone, those after them fill host memory."""

    def fill(self):
        self.store_all(range(HOST_KEYS + DISK_KEYS))
        hit = self.cache.lookup(KEYS[:DISK_KEYS])
        assert hit == kv.Hit(0, DISK_KEYS)

    def prefill_takes(self, token_seconds):
        for tokens in range(1, LEAST_SAMPLES + 1):
            self.cache.note_prefill(tokens * TOKENS, tokens * TOKENS * token_seconds)

    def read_slowly(self):
        """Every request of the disk takes 50 ms."""
        _C.fault_arm("io_delay", 0, DISK_KEYS)
        assert self.fetch(range(DISK_KEYS)) == DISK_KEYS
        self.store(range(DISK_KEYS, HOST_KEYS))  # and out of host memory they go
        self.store(range(HOST_KEYS, HOST_KEYS + DISK_KEYS))


def counts(cache):
    return {name: count for name, count in cache.stats()["worth_loading"].items() if name.endswith("_tokens") and count}


@pytest.fixture
def open_rig(tmp_path):
    return lambda **options: SlowRig(tmp_path, policy="lru", disk_io="threads", **options)


def test_a_slow_disk_is_refused_and_a_fast_one_is_not(open_rig):
    with open_rig() as rig:
        rig.fill()
        rig.prefill_takes(1e-4)
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(0, DISK_KEYS)
        rig.read_slowly()
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(0, 0)
        assert counts(rig.cache) == {"refused_disk_tokens": DISK_KEYS * TOKENS}
        for _ in range(10):
            rig.prefill_takes(1.0)
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(0, DISK_KEYS)  # computing is slower yet


def test_without_a_word_about_prefill_nothing_is_left_out(open_rig):
    with open_rig() as rig:
        rig.fill()
        rig.cache._worth._probed = 1.0  # byte a second: too slow for the first steps of an engine
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(0, DISK_KEYS)
        rig.cache.note_prefill(TOKENS, 1.0)
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(0, 0)


def test_a_hit_is_cut_to_what_host_memory_has(open_rig):
    with open_rig() as rig:
        rig.fill()
        rig.read_slowly()
        with rig.cache.prefetch(KEYS[:4]) as prefetch:
            assert prefetch.wait(timeout_seconds=30).host == 4
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(4, DISK_KEYS - 4)
        rig.prefill_takes(1e-6)
        assert rig.cache.lookup(KEYS[:DISK_KEYS]) == kv.Hit(4, 0)
        assert counts(rig.cache) == {"refused_disk_tokens": (DISK_KEYS - 4) * TOKENS}


def test_one_refusal_in_so_many_is_tried(open_rig):
    with open_rig() as rig:
        rig.fill()
        rig.read_slowly()
        rig.prefill_takes(1e-6)
        hits = [rig.cache.lookup(KEYS[:DISK_KEYS]).disk for _ in range(TRY_ONE_IN)]
        assert hits == [0] * (TRY_ONE_IN - 1) + [DISK_KEYS]
        assert counts(rig.cache)["tried_anyway_tokens"] == DISK_KEYS * TOKENS


@pytest.mark.parametrize(("option", "hit"), [("always", kv.Hit(0, DISK_KEYS)), ("never", kv.Hit(0, 0))])
def test_forced(open_rig, option, hit):
    with open_rig(worth_loading="always") as rig:
        rig.fill()
    with open_rig(worth_loading=option) as rig:
        rig.read_slowly()
        rig.prefill_takes(1e-6)
        assert {rig.cache.lookup(KEYS[:DISK_KEYS]) for _ in range(2 * TRY_ONE_IN)} == {hit}
        assert rig.fetch(range(DISK_KEYS)) == DISK_KEYS  # who asks for it by name is not refused


def test_what_is_queued_is_gone_when_all_has_ended(open_rig):
    with open_rig() as rig:
        rig.fill()
        with rig.cache.prefetch(KEYS[:DISK_KEYS]) as prefetch:
            prefetch.wait(timeout_seconds=30)
            with pytest.raises(kv.MissingKey):
                rig.cache.load([b"a key nobody has"], [0])
            with pytest.raises(kv.KVOffloadError):
                rig.cache.load(KEYS[:1], [10_000])
            rig.cache.load(KEYS[:DISK_KEYS], list(range(DISK_KEYS))).wait(timeout_seconds=5)
        stats = rig.cache.stats()["worth_loading"]
        assert stats["load_queued_bytes"] == stats["promote_queued_bytes"] == 0
        assert stats["load_seconds_per_byte"] > 0 and stats["promote_seconds_per_byte"] > 0


def test_what_cannot_be_is_an_error(open_rig, tmp_path):
    with pytest.raises(kv.InvalidInput, match="did you mean 'never'"):
        open_rig(worth_loading="nevr")
    assert list(tmp_path.iterdir()) == []
    with open_rig() as rig, pytest.raises(kv.InvalidInput, match="tokens -1"):
        rig.cache.note_prefill(-1, 1.0)
