"""The ledger of two tiers against a model, at random (tiers_machine.py) with different policies and admissions."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from tiers_machine import DISK_UNITS, HOST_BYTES, KEYS, TiersMachine


class AdaptiveMachine(TiersMachine):
    policy, admission = "adaptive", "second_touch"


TestTiers, TestAdaptiveTiers = TiersMachine.TestCase, AdaptiveMachine.TestCase
TestTiers.settings = TestAdaptiveTiers.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("machine_class", [TiersMachine, AdaptiveMachine])
def test_rare_things_do_happen(machine_class):
    """A long plain random walk, so that no invariant above holds only because nothing happened."""
    walk = random.Random(7)
    machine = machine_class()
    machine.start([HOST_BYTES // 2] * 2, whole=False)
    seen: Counter[str] = Counter()

    def step(group: int) -> None:
        first, rank, choice = walk.randrange(len(KEYS)), walk.randrange(2), walk.randrange(1000)
        keys, how = KEYS[first : first + walk.randrange(20)], walk.choice(("ok", "one fails", "fails", "refused"))
        actions = [
            (10, lambda: machine.store(group, keys)),
            (3, lambda: machine.store_and_demote(group, first, 30)),
            (6, lambda: machine.demote(group, 10)),
            (5, lambda: machine.load(group, choice, 5, keys)),
            (5, lambda: machine.promote(group, choice, 5, keys)),
            (4, lambda: machine.hold(group, keys)),
            (5, lambda: machine.holds and machine.release(choice)),
            (12, lambda: machine.model.jobs and machine.one_report(choice, rank, how)),
            (5, lambda: machine.load_that_fails(group, choice, 8, rank)),
            (16, lambda: machine.all_reports_of_a_rank(rank)),
            (5, lambda: machine.time_passes(5.0)),
            (5, lambda: machine.lookup(group, keys)),
            (2, lambda: machine.model.jobs and machine.abandon(choice)),
            (1, lambda: machine.model.disk.ready() and machine.rot(choice, rank)),
            (2, lambda: machine.grow(rank, walk.randrange(HOST_BYTES))),
            (1, lambda: machine.reset(walk.randrange(4))),
            (1, lambda: machine.forget(group, keys[:2])),
        ]
        walk.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    for count in range(5000):
        step(count // 125 % 2 if count % 125 < 70 else walk.randrange(2))  # one group first takes all the extents
        machine.bytes_are_right()
        machine.same_as_the_model()
        seen.update({"host off": machine.model.host.tier_off(), "disk off": machine.model.disk.tier_off()})
        if count % 125 == 124:
            add_up(seen, machine)
            machine.restart(walk.random() < 0.5, walk.choice(DISK_UNITS), HOST_BYTES, walk.choice([None] * 5 + [1]), 1)
    add_up(seen, machine)
    machine.teardown()
    rare = {name: count for name, count in seen.items() if count < 5}
    assert rare == {}


def add_up(seen: Counter[str], machine: TiersMachine) -> None:
    stats = machine.ledger.stats()
    names = (
        "evicted_keys disk_evicted_keys dropped_keys undemoted_keys failed_keys forgotten_keys demoted_keys "
        "promoted_keys expired_jobs late_reports abandoned_jobs hit_keys disk_hit_keys load_jobs failed_jobs"
    )
    for name in names.split():
        seen[name] += stats[name]
    for name, tier in (("host", machine.model.host), ("disk", machine.model.disk)):
        seen[f"{name} extents moved"] += tier.moved_extents
    seen["kills"], seen["restored"] = machine.kills, machine.restored
