"""What a child process does with a KVCache on a disk where the machine allows it less; used by test_cache_disk_limits.

    disk_scenarios.py NAME DIRECTORY [ARGUMENT...]

Exit status 77: the machine does not let it be tried; why is printed.
"""

import contextlib
import ctypes
import errno
import os
import resource
import struct
import sys
from pathlib import Path

import pytest
from test_cache_disk import BLOCKS, HOST_KEYS, KEYS, Rig

import kvoffload as kv
from kvoffload import _C

SKIPPED = 77
libc = ctypes.CDLL(None, use_errno=True)


def works(folder: Path, **options) -> dict:
    """Far more than host memory holds is written, found after a restart, and right; the disk's stats."""
    with Rig(folder, **options) as rig:
        rig.store_all(range(BLOCKS))
    with Rig(folder, **options) as rig:
        assert rig.cache.lookup(KEYS) == kv.Hit(0, BLOCKS)
        for first in range(0, BLOCKS, HOST_KEYS // 2):
            assert rig.fetch(list(range(first, first + HOST_KEYS // 2))) == HOST_KEYS // 2
        return rig.cache.stats()["mover"]["disk"]


def rig_or_skip(folder: Path, io: str) -> Rig:
    """Skipped where io_uring was asked for and the machine refuses it."""
    try:
        return Rig(folder, disk_io=io)
    except kv.Unsupported as refused:
        pytest.skip(str(refused))


def memory_file_system(folder: Path) -> None:
    works(folder)


def few_descriptors(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    works(folder)
    before = sorted(os.listdir("/proc/self/fd"))
    for again in range(4):
        works(folder / str(again))
    assert sorted(os.listdir("/proc/self/fd")) == before


def little_locked_memory(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    if os.geteuid() == 0:  # which may lock all it likes
        os.chown(own, 65534, 65534)
        for parent in own.parents:
            parent.chmod(parent.stat().st_mode | 0o011)
        os.setgid(65534)
        os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    assert works(own)["registered_bytes"] == 0


def io_uring_refused(folder: Path, call: str, error: str) -> None:
    number = getattr(errno, error)
    rig_or_skip(folder, "io_uring").cache.close()
    refuse({"setup": 425, "enter": 426}[call], number)
    report = works(folder)["report"]
    reason = f"io_uring is refused: io_uring_{call}: {os.strerror(number)}"
    assert report["io"] == "threads" and reason in report["io_note"], report
    with pytest.raises(kv.Unsupported, match=os.strerror(number)):
        Rig(folder, disk_io="io_uring")


def refuse(call: int, error: int) -> None:
    """As the default profile of a container does: a filter that answers one system call with an error."""
    load, equal, give = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 1, call), (give, 0, 0, 0x00050000 | error), (give, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(code))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
        pytest.skip("no filter for system calls")


def full_file_system(folder: Path) -> None:
    """The host tier goes on without the disk; what is on it stays right; with room again, all is well."""
    mount_memory(folder, "3m")
    with pytest.raises(kv.InvalidInput, match=r"disk_size.* available"):
        Rig(folder, disk_size="100MiB")
    _C.fault_arm("slab_fallocate", 0, 1)  # space that is not ours until it is written
    rig = Rig(folder)
    rig.store_all(range(8))
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    for first in range(8, BLOCKS, 8):
        rig.store(range(first, first + 8))
        assert rig.fetch(list(range(first, first + 8))) == 8
    assert rig.cache.stats()["mover"]["disk"]["demotions"]["io_error"] > 0
    rig.cache.close()
    filler.unlink()
    with Rig(folder) as rig:
        assert 8 <= sum(rig.fetch([i]) for i in range(BLOCKS)) < BLOCKS
        rig.cache.reset()
        rig.store_all(range(BLOCKS))
        assert rig.fetch(list(range(8))) == 8


def mount_memory(folder: Path, size: str) -> None:
    """A file system of that size, for this process alone."""
    new_namespace, private = 0x20000, 0x4000 | 0x40000
    if libc.unshare(new_namespace) != 0 or libc.mount(b"none", b"/", None, private, None) != 0:
        pytest.skip("no mount namespace of its own")
    if libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()) != 0:
        pytest.skip("may not mount")


def hold(folder: Path) -> None:
    """Until it is killed."""
    rig = Rig(folder)
    rig.store_all(range(8))
    print("open", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    except pytest.skip.Exception as skipped:
        print(skipped)
        sys.exit(SKIPPED)
