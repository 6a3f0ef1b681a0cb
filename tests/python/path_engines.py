"""An engine that only measures, as tests of path tables want it, and what they all ask of the table's file."""

import stat
from pathlib import Path

import kvoffload as kv
from kvoffload.paths import load_or_calibrate

IDENTITY = "NVIDIA H200, driver 13000, PCIe 5 x16"
LINK_GB_PER_S = 63.0
GPU_PATHS = ["dma", "kernel", "staged"]


def some_rows(names=tuple(GPU_PATHS)):
    return [
        (store, size, spans, path, size * spans / 5e10 * (1 + 0.25 * i) + 1e-5)
        for store in (True, False)
        for size in (4096, 65536)
        for spans in (1, 1000)
        for i, path in enumerate(names)
    ]


class FakeEngine:
    """Counts measurements and remembers what it was given. `fails`: the call of this name raises."""

    def __init__(self, rows=None, ceilings=(54.0, 55.0), names=GPU_PATHS, ring_bytes=256 << 20, fails=""):
        self.paths, self.ring_bytes = list(names), ring_bytes
        self.measured, self.table = 0, None
        self._rows, self._ceilings, self._fails = some_rows() if rows is None else rows, ceilings, fails

    def ceiling(self):
        return self._answer("ceiling", self._ceilings)

    def calibrate(self):
        self.measured += 1
        return self._answer("calibrate", self._rows)

    def set_path_table(self, rows):
        self.table = rows

    def _answer(self, name, answer):
        if self._fails == name:
            raise kv.DeviceError(f"{name}: the GPU said no")
        return answer


def find(engine, identity=IDENTITY, **options):
    table = load_or_calibrate(engine, identity, LINK_GB_PER_S, **options)
    assert engine.table == [cell.row for cell in table.rows], "the engine got another table than the caller"
    return table


def kept_file(cache) -> Path:
    (file,) = (cache / "kvoffload").glob("paths-*.json")
    return file


def measured_once_and_kept(cache) -> Path:
    assert find(FakeEngine()).source.startswith("calibrated 20")
    return kept_file(cache)


def ignored_and_replaced(cache):
    engine = FakeEngine()
    assert find(engine).source.startswith("calibrated")
    assert engine.measured == 1
    file = kept_file(cache)
    assert stat.S_ISREG(file.lstat().st_mode)
    again = FakeEngine()
    find(again)
    assert again.measured == 0, "the good table did not take the bad one's place"
