"""A ledger of two tiers, as simple and slow as can be: what test_tiers_model.py compares the ledger with.

Which key goes to make room is a policy's business: the model takes the slot that the ledger chose and checks that its
key was one that may go.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ledger_model import Entry, LedgerModel

Finished = tuple[int, str, bool, bool]


class TierModel(LedgerModel):
    """Keys and slots of one tier; `lru` holds those that may be evicted, in no order that means anything."""

    def __init__(self, extent_bytes: int, slot_bytes: tuple[int, ...]) -> None:
        super().__init__(0, extent_bytes, slot_bytes)
        # (entry, over the disk) -> jobs past their deadline that own it
        self.given_up: Counter[tuple[Entry, bool]] = Counter()

    def quarantined(self, group: int) -> set[int]:
        return {entry.slot for (entry, _), jobs in self.given_up.items() if jobs and entry.group == group}

    def hung(self, on_disk: bool) -> bool:
        """Jobs of that kind have too much of the tier."""
        entries = {entry for (entry, disk), jobs in self.given_up.items() if jobs and disk == on_disk}
        return sum(self.slot_bytes[entry.group] for entry in entries) > 0.05 * self.ready_bytes

    def tier_off(self) -> bool:
        return self.hung(on_disk=False)

    def find(self, group: int, key: bytes) -> Entry | None:
        return self.visible.get((group, key))

    def is_ready(self, group: int, key: bytes) -> bool:
        entry = self.find(group, key)
        return entry is not None and entry.state == "ready"

    def ready(self) -> list[Entry]:
        return [entry for entry in self.visible.values() if entry.state == "ready"]

    def fill(self, group: int, key: bytes, slot: int | None, kept: Iterable[Entry] = ()) -> Entry | None:
        """`slot`: what the ledger chose; None: it had no room. `kept`: the call needs them."""
        victims = [entry for entry in self.lru if entry.group == group and entry not in kept]
        unlent = [extent for extent in self.unlent() if self.slots_of(extent, group)]
        if not self.free(group):
            if unlent:
                self.lent[unlent[0]] = group
            elif victims and slot is not None:
                assert self.taken[group, slot] in victims, f"slot {slot} holds a key that may not go"
                self.evict(self.taken[group, slot])
            elif not victims:
                self.empty_an_extent(group)
        assert bool(victims or self.free(group)) == (slot is not None), "room for a key and no slot, or the reverse"
        if slot is None:
            return None
        assert slot in self.free(group), f"slot {slot} is not free"
        entry = self.taken[group, slot] = self.visible[group, key] = Entry(key, group, slot)
        self.own(entry)
        return entry

    def restore(self, group: int, key: bytes, slot: int) -> None:
        self.lent[slot // (self.extent_bytes // self.slot_bytes[group])] = group
        entry = self.taken[group, slot] = self.visible[group, key] = Entry(key, group, slot, state="ready")
        self.lru.append(entry)


class DiskModel(TierModel):
    host: TierModel  # its jobs have slots of it, too

    def tier_off(self) -> bool:
        return self.hung(on_disk=True) or self.host.hung(on_disk=True)


@dataclass(eq=False)
class TiersJob:
    kind: str
    reads: list[Entry]
    fills: list[Entry]
    deadline: float
    version: int
    sequence: int = 0
    reported: set[int] = field(default_factory=set)
    failed: bool = False
    given_up: bool = False

    @property
    def on_disk(self) -> bool:
        return self.kind in ("demote", "promote")


class TiersModel:
    def __init__(self, ranks: int, host: TierModel, disk: DiskModel, second_touch: bool) -> None:
        self.ranks, self.host, self.disk, self.second_touch = ranks, host, disk, second_touch
        disk.host = host
        self.version = 0  # of what a key means: another one after each reset
        self.jobs: dict[int, TiersJob] = {}
        self.holds: list[list[Entry]] = []
        self.waiting: list[deque[bytes]] = [deque() for _ in host.groups]
        self.wanted: set[Entry] = set()  # in host memory, waiting for the disk
        self.being_demoted: set[Entry] = set()
        self.failed_demotions: Counter[Entry] = Counter()
        self.disk_takes = True
        self.counters: Counter[str] = Counter()

    def reads_from(self, kind: str) -> TierModel:
        return self.disk if kind == "promote" else self.host

    def filled_by(self, kind: str) -> TierModel:
        return self.disk if kind == "demote" else self.host

    def serves_both(self) -> bool:
        return not self.host.tier_off() and not self.disk.tier_off()

    # The ledger's calls

    def lookup(self, group: int, keys: list[bytes]) -> tuple[int, int]:
        in_host = len(self.host.leading(group, keys))
        there = [self.host.is_ready(group, key) or self.disk.is_ready(group, key) for key in keys]
        in_both = [*there, False].index(False) if self.serves_both() else in_host
        self.used([self.host.visible[group, key] for key in keys[:in_both] if self.host.is_ready(group, key)])
        self.counters.update({"lookup_keys": len(keys), "hit_keys": in_host, "disk_hit_keys": in_both - in_host})
        return in_host, in_both - in_host

    def used(self, entries: list[Entry]) -> None:
        self.want_on_disk([entry for entry in entries if self.second_touch or self.failed_demotions[entry]])

    def want_on_disk(self, entries: list[Entry]) -> None:
        for entry in entries:
            busy = entry in self.wanted or (self.failed_demotions[entry] >= 4 and not self.disk_takes)
            if not busy and not self.disk.find(entry.group, entry.key):
                self.wanted.add(entry)
                self.waiting[entry.group].append(entry.key)

    def plan_store(self, group: int, keys: list[bytes], deadline: float, job_id: int, slots: list[int]) -> list[int]:
        """Indexes of the keys that got a slot."""
        if self.host.tier_off():
            self.counters["dropped_keys"] += len(keys)
            return []
        kept = [entry for key in keys if (entry := self.host.find(group, key))]
        accepted, fills = [], []
        for i, key in enumerate(keys):
            if self.host.find(group, key):
                self.counters["skipped_keys"] += 1
                continue
            slot = slots[len(fills)] if len(fills) < len(slots) else None
            entry = self.host.fill(group, key, slot, kept)
            if entry is None:
                self.counters["dropped_keys"] += 1
            else:
                accepted.append(i)
                fills.append(entry)
        self.used([entry for entry in kept if entry.state == "ready"])
        self.counters["accepted_keys"] += len(fills)
        self.add_job(job_id, "store", [], fills, deadline)
        return accepted

    def plan_load(self, group: int, keys: list[bytes], deadline: float, job_id: int) -> list[int] | None:
        reads = self.host.leading(group, keys)
        if not keys or len(reads) < len(keys):
            return None
        self.add_job(job_id, "load", reads, [], deadline)
        return [entry.slot for entry in reads]

    def plan_promote(
        self, group: int, keys: list[bytes], deadline: float, job_id: int, slots: list[int]
    ) -> list[tuple[bytes, int]]:
        """Keys that are moved, and their disk slots."""
        reads, fills = [], []
        kept = [entry for key in keys if (entry := self.host.find(group, key))]
        for key in keys if self.serves_both() else []:
            if self.host.find(group, key):
                continue
            if not self.disk.is_ready(group, key):
                break
            slot = slots[len(fills)] if len(fills) < len(slots) else None
            entry = self.host.fill(group, key, slot, kept)
            if entry is None:
                break
            fills.append(entry)
            reads.append(self.disk.visible[group, key])
        self.add_job(job_id, "promote", reads, fills, deadline)
        return [(entry.key, entry.slot) for entry in reads]

    def plan_demote(
        self, group: int, most: int, deadline: float, job_id: int, disk_slots: list[int], sequence: int
    ) -> list[tuple[bytes, int]]:
        """Keys that are moved, and their host slots."""
        reads: list[Entry] = []
        fills: list[Entry] = []
        waiting = self.waiting[group] if self.serves_both() else deque()
        while waiting and len(fills) < most:
            key = waiting[0]
            entry = self.host.find(group, key)
            movable = self.host.is_ready(group, key) and not self.disk.find(group, key)
            movable = movable and entry not in self.being_demoted
            slot = disk_slots[len(fills)] if len(fills) < len(disk_slots) else None
            record = self.disk.fill(group, key, slot) if movable else None
            if movable and record is None:
                break
            waiting.popleft()
            self.wanted.discard(entry)
            if record is None:
                self.counters["undemoted_keys"] += 1
            else:
                fills.append(record)
                reads.append(entry)
                self.being_demoted.add(entry)
        self.add_job(job_id, "demote", reads, fills, deadline, sequence)
        return [(entry.key, entry.slot) for entry in reads]

    def add_job(
        self, job_id: int, kind: str, reads: list[Entry], fills: list[Entry], deadline: float, sequence: int = 0
    ) -> None:
        assert bool(reads or fills) == (job_id > 0)
        if job_id:
            for entry in reads:
                self.reads_from(kind).own(entry)
            self.jobs[job_id] = TiersJob(kind, reads, fills, deadline, self.version, sequence)
            self.counters[f"{kind}_jobs"] += 1

    def hold(self, group: int, keys: list[bytes]) -> int:
        entries = self.host.leading(group, keys)
        for entry in entries:
            self.host.own(entry)
        self.used(entries)
        self.holds.append(entries)
        return len(entries)

    def release(self, index: int) -> None:
        for entry in self.holds.pop(index):
            self.host.disown(entry)

    def report(
        self, rank: int, job_id: int, ok: bool, failed: tuple[int, ...] = (), untried: bool = False
    ) -> list[Finished]:
        job = self.jobs.get(job_id)
        if job is None or rank in job.reported:
            self.counters["unknown_reports"] += 1
            return []
        job.reported.add(rank)
        self.counters["late_reports"] += job.given_up
        job.failed |= not ok
        if ok:
            for i in failed:
                self.fail(job, job.fills[i : i + 1], job.reads[i : i + 1])
        else:
            self.fail(job, job.fills, [] if untried and job.kind == "promote" else job.reads)
        return self.finish(job_id, job) if len(job.reported) == self.ranks else []

    def fail(self, job: TiersJob, fills: list[Entry], reads: list[Entry]) -> None:
        filled = self.filled_by(job.kind).drop_all(fills)
        read = 0 if job.kind == "demote" else self.reads_from(job.kind).drop_all(reads)
        self.counters["failed_keys"] += max(filled, read)

    def finish(self, job_id: int, job: TiersJob) -> list[Finished]:
        good = not job.failed and not job.given_up
        self.counters["failed_jobs"] += not good and not job.given_up
        if job.kind == "demote":
            self.disk_takes = good
        ready = [entry for entry in job.fills if good and entry.state == "filling"]
        for entry in ready:
            entry.state = "ready"
        done = {"store": "stored_keys", "promote": "promoted_keys", "demote": "demoted_keys", "load": ""}[job.kind]
        self.counters[done] += len(ready)
        if job.kind == "store" and not self.second_touch:
            self.want_on_disk(ready)
        self.let_go(job_id, job)
        return [(job_id, job.kind, good, job.given_up)]

    def each_entry(self, job: TiersJob, call: Callable[[TierModel, Entry], None]) -> None:
        for entry in job.fills:
            call(self.filled_by(job.kind), entry)
        for entry in job.reads:
            call(self.reads_from(job.kind), entry)

    def let_go(self, job_id: int, job: TiersJob) -> None:
        def let_entry_go(tier: TierModel, entry: Entry) -> None:
            tier.given_up[entry, job.on_disk] -= job.given_up
            tier.disown(entry)

        for record, entry in zip(job.fills, job.reads, strict=True) if job.kind == "demote" else ():
            self.being_demoted.discard(entry)
            self.failed_demotions[entry] += record.state == "dead"
        self.each_entry(job, let_entry_go)
        del self.jobs[job_id]

    def expire(self, now: float) -> list[Finished]:
        finished = []
        for job_id, job in self.jobs.items():
            if job.given_up or job.deadline > now:
                continue
            job.given_up = True
            self.counters["failed_keys"] += self.filled_by(job.kind).drop_all(job.fills)
            self.counters["failed_keys"] += self.host.drop_all(job.reads) if job.kind == "load" else 0
            self.each_entry(job, lambda tier, entry, on_disk=job.on_disk: tier.given_up.update([(entry, on_disk)]))
            self.counters.update(("failed_jobs", "expired_jobs"))
            finished.append((job_id, job.kind, False, False))
        return finished

    def abandon(self, job_id: int) -> None:
        job = self.jobs[job_id]
        dropped = self.filled_by(job.kind).drop_all(job.fills)
        self.counters["undemoted_keys" if job.kind == "demote" else "dropped_keys"] += dropped
        self.counters["abandoned_jobs"] += 1
        self.let_go(job_id, job)

    def forget(self, group: int, keys: list[bytes]) -> int:
        count = 0
        for key in keys:
            found = [tier.drop_all([entry]) for tier in (self.host, self.disk) if (entry := tier.find(group, key))]
            count += bool(found)
        self.counters["forgotten_keys"] += count
        return count

    def reset(self) -> None:
        self.version += 1
        self.counters["forgotten_keys"] += self.host.drop_all(list(self.host.visible.values()))
        self.disk.drop_all(list(self.disk.visible.values()))
        for keys in self.waiting:
            keys.clear()
