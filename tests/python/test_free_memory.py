"""How much memory may be taken, in made-up machines."""

import pytest

from kvoffload.free_memory import UNKNOWN_BYTES, available_bytes


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"}
V2 = {"proc/self/cgroup": "0::/pod/box\n"}
V1 = {"proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/box\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "bytes_left"),
    [
        ({}, UNKNOWN_BYTES),
        (MACHINE, 5000 << 10),
        ({**MACHINE, "cg/memory.max": "max\n", "cg/memory.current": "1000\n"}, 5000 << 10),
        ({**MACHINE, "cg/memory.max": "50000\n", "cg/memory.current": "1000\n"}, 49000),
        ({**MACHINE, "cg/memory.max": "50000\n", "cg/memory.current": "60000\n"}, 0),
        # page cache is given back
        (
            {
                **MACHINE, "cg/memory.max": "50000\n", "cg/memory.current": "9000\n",
                "cg/memory.stat": "anon 4000\nactive_file 2000\ninactive_file 3000\n",
            },
            46000,
        ),
        # the tightest of its own group and those above
        ({**MACHINE, **V2, "cg/pod/memory.max": "70000\n", "cg/pod/box/memory.max": "max\n"}, 70000),
        ({**MACHINE, **V2, "cg/pod/memory.max": "70000\n", "cg/pod/box/memory.max": "60000\n"}, 60000),
        ({**MACHINE, **V2, "cg/other/memory.max": "1\n"}, 5000 << 10),
        # v1
        ({**MACHINE, **V1, "cg/memory/box/memory.limit_in_bytes": str(2**63 - 4096)}, 5000 << 10),
        (
            {
                **MACHINE, **V1, "cg/memory/box/memory.limit_in_bytes": "80000", "cg/memory/x/memory.max": "1",
                "cg/memory/box/memory.usage_in_bytes": "30000",
                "cg/memory/box/memory.stat": "total_active_file 5000\nactive_file 9\n",
            },
            55000,
        ),
    ],
)  # fmt: skip
def test_the_least_of_machine_and_cgroups(files, bytes_left, tmp_path):
    write(tmp_path, files)
    assert available_bytes(str(tmp_path / "proc"), str(tmp_path / "cg")) == bytes_left
