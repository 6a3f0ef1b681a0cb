"""Memory that the process may not have is refused before any of it is taken: the numbers and the option are named."""

import pytest
from backends import HostNumpy
from conformance import World, finish
from kv_layouts import CASES

import kvoffload as kv

MIB = 1 << 20
V2 = ("0::/kv.slice\n", "kv.slice/memory.max", "kv.slice/memory.current")
V1 = ("5:memory:/kv\n", "memory/kv/memory.limit_in_bytes", "memory/kv/memory.usage_in_bytes")


@pytest.fixture(params=[V2, V1], ids=["cgroup v2", "cgroup v1"])
def roots(request, tmp_path):
    """A made-up machine whose cgroup allows 64 MiB, 40 of them in use."""
    group, limit, usage = request.param
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    for name, value in ((limit, 64 * MIB), (usage, 40 * MIB)):
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return {"cgroup_root": str(tmp_path / "cgroup"), "proc_root": str(tmp_path / "proc")}


def test_more_than_the_cgroup_allows_is_refused_with_both_numbers(roots):
    with pytest.raises(kv.MemoryLimit) as error:
        World(HostNumpy(), CASES[0], host="32MiB", **roots)
    for part in ("host", str(32 * MIB), str(24 * MIB), "cgroup"):
        assert part in str(error.value)


def test_what_fits_is_taken(roots):
    with World(HostNumpy(), CASES[0], host="24MiB", **roots) as world:
        assert world.mover.hello().ready_bytes == 24 * MIB
        blocks, slots = world.choose(0, 1)
        finish(world.store(0, blocks, slots))


def test_little_free_memory_only_warns(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemAvailable: 1024 kB\n")
    with World(HostNumpy(), CASES[0], host="4MiB", proc_root=str(tmp_path)) as world:
        assert world.mover.hello().ready_bytes == 4 * MIB
