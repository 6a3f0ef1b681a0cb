"""The ledger again, as simple and slow as can be: what test_ledger_model.py compares it with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(eq=False)
class Entry:
    key: bytes
    group: int
    slot: int
    state: str = "filling"  # "ready", "dead"
    owners: int = 0


@dataclass(eq=False)
class ModelJob:
    kind: str
    entries: list[Entry]
    deadline: float
    reported: set[int] = field(default_factory=set)
    failed: bool = False
    given_up: bool = False


class LedgerModel:
    def __init__(self, ranks: int, extent_bytes: int, slot_bytes: tuple[int, ...]):
        self.ranks, self.extent_bytes, self.slot_bytes = ranks, extent_bytes, slot_bytes
        self.groups = range(len(slot_bytes))
        self.ready_bytes = 0
        self.moved_extents = 0
        self.lent: dict[int, int] = {}  # extent -> group
        self.taken: dict[tuple[int, int], Entry] = {}  # (group, slot) -> entry, dead ones too
        self.visible: dict[tuple[int, bytes], Entry] = {}
        self.lru: list[Entry] = []  # ready entries without owners, of all groups
        self.jobs: dict[int, ModelJob] = {}
        self.holds: list[list[Entry]] = []
        self.counters: Counter[str] = Counter()

    # Slots

    def slots_of(self, extent: int, group: int) -> set[int]:
        per_extent = self.extent_bytes // self.slot_bytes[group]
        usable = min(self.ready_bytes - extent * self.extent_bytes, self.extent_bytes) // self.slot_bytes[group]
        return {extent * per_extent + i for i in range(max(usable, 0))}

    def capacity(self, group: int) -> set[int]:
        return {slot for extent, owner in self.lent.items() if owner == group for slot in self.slots_of(extent, group)}

    def free(self, group: int) -> set[int]:
        return {slot for slot in self.capacity(group) if (group, slot) not in self.taken}

    def unlent(self) -> list[int]:
        return [extent for extent in range(-(-self.ready_bytes // self.extent_bytes)) if extent not in self.lent]

    def quarantined(self, group: int) -> set[int]:
        given_up = [entry for job in self.jobs.values() if job.given_up for entry in job.entries]
        return {entry.slot for entry in given_up if entry.group == group}

    def quarantined_bytes(self) -> int:
        return sum(len(self.quarantined(group)) * self.slot_bytes[group] for group in self.groups)

    def tier_off(self) -> bool:
        return self.quarantined_bytes() > 0.05 * self.ready_bytes

    def make_room(self, group: int, touched: set[Entry]) -> bool:
        if self.free(group):
            return True
        for extent in self.unlent():
            if self.slots_of(extent, group):
                self.lent[extent] = group
                return True
        for entry in self.lru:
            if entry.group == group and entry not in touched:
                self.evict(entry)
                return True
        return self.empty_an_extent(group)

    def empty_an_extent(self, group: int) -> bool:
        extents = Counter(self.lent.values())
        richest = max(self.groups, key=lambda g: extents[g])
        if extents[richest] <= extents[group]:
            return False
        best: list[Entry] | None = None
        for extent in sorted(self.lent):
            if self.lent[extent] != richest or not self.slots_of(extent, group):
                continue
            slots = self.slots_of(extent, richest)
            entries = [self.taken[richest, slot] for slot in slots if (richest, slot) in self.taken]
            if not any(entry.owners for entry in entries) and (best is None or len(entries) < len(best)):
                best, chosen = entries, extent
        if best is None:
            return False
        for entry in best:
            self.evict(entry)
        self.lent[chosen] = group
        self.moved_extents += 1
        return True

    # Entries

    def touch(self, entries: list[Entry]) -> None:
        for entry in reversed(entries):
            if entry in self.lru:
                self.lru.remove(entry)
                self.lru.append(entry)

    def own(self, entry: Entry) -> None:
        entry.owners += 1
        if entry in self.lru:
            self.lru.remove(entry)

    def disown(self, entry: Entry) -> None:
        entry.owners -= 1
        assert entry.owners >= 0
        if entry.owners == 0 and entry.state == "ready":
            self.lru.append(entry)
        self.free_if_dead(entry)

    def drop(self, entry: Entry) -> None:
        del self.visible[entry.group, entry.key]
        entry.state = "dead"
        if entry in self.lru:
            self.lru.remove(entry)
        self.free_if_dead(entry)

    def drop_all(self, entries: list[Entry]) -> int:
        return sum(1 for entry in entries if entry.state != "dead" and not self.drop(entry))

    def free_if_dead(self, entry: Entry) -> None:
        if entry.owners == 0 and entry.state == "dead":
            del self.taken[entry.group, entry.slot]

    def evict(self, entry: Entry) -> None:
        self.drop(entry)
        self.counters["evicted_keys"] += 1

    # The ledger's calls. `slots`: what the ledger chose; any free slot will do.

    def states(self, group: int, keys: list[bytes]) -> list[str]:
        if self.tier_off():
            return ["absent"] * len(keys)
        return [self.visible[group, key].state if (group, key) in self.visible else "absent" for key in keys]

    def leading(self, group: int, keys: list[bytes]) -> list[Entry]:
        states = [*self.states(group, keys), "absent"]
        count = next(i for i, state in enumerate(states) if state != "ready")
        return [self.visible[group, key] for key in keys[:count]]

    def lookup(self, group: int, keys: list[bytes]) -> int:
        entries = self.leading(group, keys)
        self.touch(entries)
        self.counters["lookup_keys"] += len(keys)
        self.counters["hit_keys"] += len(entries)
        return len(entries)

    def plan_store(self, group: int, keys: list[bytes], deadline: float, job_id: int, slots: list[int]) -> list[int]:
        """Indexes of the keys that got a slot."""
        if self.tier_off():
            self.counters["dropped_keys"] += len(keys)
            return []
        known = [self.visible[group, key] for key in keys if (group, key) in self.visible]
        self.touch(known)
        accepted: list[int] = []
        entries = []
        for i, key in enumerate(keys):
            if (group, key) in self.visible:
                self.counters["skipped_keys"] += 1
            elif not self.make_room(group, set(known)):
                self.counters["dropped_keys"] += 1
            else:
                slot = slots[len(accepted)]
                assert slot in self.free(group), f"slot {slot} is not free"
                entry = Entry(key, group, slot, owners=1)
                self.taken[group, slot] = self.visible[group, key] = entry
                entries.append(entry)
                accepted.append(i)
        if entries:
            self.jobs[job_id] = ModelJob("store", entries, deadline)
            self.counters["store_jobs"] += 1
            self.counters["accepted_keys"] += len(entries)
        return accepted

    def plan_load(self, group: int, keys: list[bytes], deadline: float, job_id: int) -> list[int] | None:
        entries = self.leading(group, keys)
        if not keys or len(entries) < len(keys):
            return None
        for entry in entries:
            self.own(entry)
        self.jobs[job_id] = ModelJob("load", entries, deadline)
        self.counters["load_jobs"] += 1
        return [entry.slot for entry in entries]

    def hold(self, group: int, keys: list[bytes]) -> int:
        entries = self.leading(group, keys)
        for entry in entries:
            self.own(entry)
        self.holds.append(entries)
        return len(entries)

    def release(self, index: int) -> None:
        for entry in reversed(self.holds.pop(index)):
            self.disown(entry)

    def report(self, rank: int, job_id: int, ok: bool) -> list[tuple[int, str, bool, bool]]:
        job = self.jobs.get(job_id)
        if job is None or rank in job.reported:
            self.counters["unknown_reports"] += 1
            return []
        job.reported.add(rank)
        self.counters["late_reports"] += job.given_up
        if not ok:
            job.failed = True
            self.counters["failed_keys"] += self.drop_all(job.entries)
        if len(job.reported) < self.ranks:
            return []
        del self.jobs[job_id]
        good = not job.failed and not job.given_up
        self.counters["failed_jobs"] += not good and not job.given_up
        for entry in job.entries:
            if job.kind == "store" and good and entry.state == "filling":
                entry.state = "ready"
                self.counters["stored_keys"] += 1
        for entry in reversed(job.entries):
            self.disown(entry)
        return [(job_id, job.kind, good, job.given_up)]

    def expire(self, now: float) -> list[tuple[int, str, bool, bool]]:
        finished = []
        for job_id, job in self.jobs.items():
            if not job.given_up and job.deadline <= now:
                job.given_up = True
                self.counters["failed_keys"] += self.drop_all(job.entries)
                self.counters.update(("failed_jobs", "expired_jobs"))
                finished.append((job_id, job.kind, False, False))
        return finished

    def abandon(self, job_id: int) -> None:
        job = self.jobs.pop(job_id)
        if job.kind == "store":
            self.counters["dropped_keys"] += self.drop_all(job.entries)
        self.counters["abandoned_jobs"] += 1
        for entry in reversed(job.entries):
            self.disown(entry)

    def forget(self, group: int, keys: list[bytes]) -> int:
        count = self.drop_all([self.visible[group, key] for key in keys if (group, key) in self.visible])
        self.counters["forgotten_keys"] += count
        return count

    def reset(self) -> None:
        self.counters["forgotten_keys"] += self.drop_all(list(self.visible.values()))
