"""Files of a cache, made record by record: two groups, any number of ranks and directories."""

import contextlib
import ctypes

import numpy as np

from kvoffload import _C

FINGERPRINT = "0123456789abcdef"
SLOT, PAYLOAD = (16384, 8192), (16384 - 700, 5000)
HOST_BYTES, CAP_BYTES = 8 * 16384, 1 << 20


def key_of(number):
    return b"the key of %09d" % number


class CacheFiles:
    """A namespace that is closed, with `chunks` committed: (group, slot) -> number of the key. Slots are of the slab.

    Records of one rank have the same payload: `payload(number)`.
    """

    def __init__(self, roots, ranks=1, chunks=None, dp=0):
        self.roots, self.ranks, self.dp = [str(root) for root in roots], ranks, dp
        self.chunks = dict(chunks if chunks is not None else {(0, slot): slot for slot in range(8)})
        self.sequence = 1
        with self.open() as (manifest, tiers, epoch):
            for tier, _ in tiers:
                tier.set_identity(manifest.identity)
            for (group, slot), number in self.chunks.items():
                self.write(tiers, group, slot, number, epoch)
                manifest.commit(epoch, group, [key_of(number)], [slot], [self.sequence])
                self.sequence += 1

    @contextlib.contextmanager
    def open(self):
        """The manifest, (tier, memory) of each rank, the epoch; all closed and unlocked at the end."""
        held, tiers = [], []
        for rank in range(self.ranks):
            places = [_C.NamespaceDir(root, FINGERPRINT, self.dp, f"rank{rank}", 1) for root in self.roots]
            held += places
            arena = _C.Arena(_C.host_device(), HOST_BYTES)
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * HOST_BYTES).from_address(arena.address))
            paths = [place.path for place in places]
            tier = _C.DiskTier(
                arena, paths, FINGERPRINT, rank, SLOT, PAYLOAD, CAP_BYTES * len(paths), depth=4, request_bytes=1 << 20
            )
            tiers.append((tier, memory))
        ledger = _C.NamespaceDir(self.roots[0], FINGERPRINT, self.dp, "ledger", 1)
        plan = _C.plan_extents(tiers[0][0].bytes, SLOT)
        self.extent_bytes = plan.extent_bytes
        manifest = _C.Manifest(ledger.path, f"{FINGERPRINT} {plan.extent_bytes}", [1 << 20, 1 << 20])
        yield manifest, tiers, manifest.stats()["epoch"]
        manifest.close(10)
        for tier, _ in tiers:
            tier.close(10)
        del ledger, held

    def write(self, tiers, group, slot, number, epoch, sequence=None):
        for tier, memory in tiers:
            memory[: PAYLOAD[group]] = self.payload(number)[: PAYLOAD[group]]
            sequence = self.sequence if sequence is None else sequence
            tier.demote(1, group, [0], [slot], [key_of(number)], sequence, epoch, 10)
            while tier.stats()["jobs"]:
                tier.wait(10)
            ((_, moved, _, error, *_),) = tier.poll()
            assert moved, error

    def payload(self, number):
        return np.frombuffer(np.random.default_rng(number).bytes(PAYLOAD[0]), np.uint8)

    @property
    def manifest_path(self):
        return f"{self.roots[0]}/{FINGERPRINT}/dp{self.dp}/ledger/manifest"

    def slab_path(self, rank=0, root=0):
        return f"{self.roots[root]}/{FINGERPRINT}/dp{self.dp}/rank{rank}/slab"

    def slot_range(self, group, slot):
        """Where a slot's bytes lie in the file, of a cache in one directory."""
        each = self.extent_bytes // SLOT[group]
        begin = 4096 + slot // each * self.extent_bytes + slot % each * SLOT[group]
        return begin, begin + SLOT[group]

    def read(self, group, slot, rank=0):
        begin, end = self.slot_range(group, slot)
        with open(self.slab_path(rank), "rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def put(self, group, slot, content, rank=0, at=0):
        with open(self.slab_path(rank), "r+b") as file:
            file.seek(self.slot_range(group, slot)[0] + at)
            file.write(content)
