"""Which table an engine gets and why, how it is shown, and which values of its options are refused."""

import pytest
from path_engines import GPU_PATHS, IDENTITY, FakeEngine, find, ignored_and_replaced, measured_once_and_kept, some_rows

import kvoffload as kv
from kvoffload import paths
from kvoffload.paths import PathCell, PathTable, built_in, load_or_calibrate


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache directory; nothing is in it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "cache"


def built_in_because(table, reason):
    assert table.source.startswith("built in: ")
    assert reason in table.source
    assert {(cell.store, cell.path) for cell in table.rows} == {(s, p) for s in (True, False) for p in GPU_PATHS}


@pytest.mark.parametrize(
    ("ceilings", "believed"),
    [((31.0, 55.0), False), ((55.0, 31.0), False), ((32.0, 32.0), True), ((0.0, 0.0), True)],
    ids=["store under half", "load under half", "above half", "unknown"],
)
def test_a_link_far_under_its_speed_is_not_believed(cache, ceilings, believed):
    table = find(FakeEngine(ceilings=ceilings))
    if believed:
        assert table.source.startswith("calibrated")
        return
    built_in_because(table, "31.0 GB/s on a link of 63.0 GB/s")
    assert list((cache / "kvoffload").glob("*.json")) == []
    ignored_and_replaced(cache)  # the next start measures again


def test_a_link_of_unknown_speed_is_believed():
    assert load_or_calibrate(FakeEngine(ceilings=(1.0, 1.0)), IDENTITY).source.startswith("calibrated")


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (FakeEngine(rows=[]), "no ring, or the arena is too small"),
        (FakeEngine(rows=some_rows(["dma", "kernel"])), "store by staged is missing"),
        (FakeEngine(rows=[*some_rows(), (True, 4096, 7, "dma", float("nan"))]), "nan"),
        (FakeEngine(fails="calibrate"), "calibrate: the GPU said no"),
        (FakeEngine(fails="ceiling"), "ceiling: the GPU said no"),
    ],
    ids=["cannot", "incomplete", "NaN", "calibrate fails", "ceiling fails"],
)
def test_what_cannot_be_measured_is_built_in_and_says_why(cache, engine, reason):
    built_in_because(find(engine), reason)
    assert list((cache / "kvoffload").glob("*.json")) == []


def test_calibrate_off_never_measures_but_uses_what_is_kept(cache):
    engine = FakeEngine()
    built_in_because(find(engine, calibrate=False), "calibrate is off")
    assert engine.measured == 0
    measured_once_and_kept(cache)
    assert find(FakeEngine(rows=[]), calibrate=False).source.startswith("read from")


def test_the_host_device_has_nothing_to_choose_from(cache):
    engine = FakeEngine(names=["host", "kernel", "staged"])
    table = load_or_calibrate(engine, "host")
    assert (table.rows, engine.table, engine.measured) == ((), None, 0)
    assert table.source.startswith("built in: the device is host memory")
    assert table.summary() == ""
    assert not cache.exists()


def test_the_built_in_table_has_only_usable_paths():
    assert {cell.path for cell in built_in("no ring", ["dma", "kernel"]).rows} == {"dma", "kernel"}


def test_the_built_in_table_tells_few_pages_from_many():
    rows = built_in("test", GPU_PATHS).rows
    for cell in rows:
        one = next(c for c in rows if (c.store, c.span_bytes, c.path, c.spans) == (*cell.row[:2], cell.path, 1))
        assert 0 < one.seconds <= cell.seconds
    few = [cell for cell in rows if cell.spans == 1 and cell.span_bytes == 4096 and not cell.store]
    assert min(few, key=lambda cell: cell.seconds).path != "staged"


TABLE = PathTable(
    tuple(
        PathCell(store, size, spans, path, size * spans / rate / 1e9)
        for store, size, spans, path, rate in [
            (True, 4096, 1, "dma", 3.0),
            (True, 4096, 1000, "dma", 4.0),
            (True, 4096, 1000, "kernel", 44.0),
            (True, 65536, 1000, "dma", 38.0),
            (True, 65536, 1000, "kernel", 52.0),
            (True, 2 << 20, 1000, "dma", 54.0),
            (True, 2 << 20, 1000, "kernel", 52.0),
            (False, 4096, 1000, "dma", 50.0),
        ]
    ),
    "calibrated 2026-11-30 on NVIDIA H200",
    (54.9, 55.3),
)


def test_best_is_the_fastest_path_of_each_size_when_pages_are_many():
    assert [(cell.span_bytes, cell.path, cell.gb_per_s) for cell in TABLE.best("store")] == [
        (4096, "kernel", 44.0),
        (65536, "kernel", 52.0),
        (2 << 20, "dma", 54.0),
    ]
    assert TABLE.summary() == "store kernel to 64 KiB, dma above; load dma at every size"


def test_text_is_the_table():
    assert TABLE.text().splitlines() == [
        "paths calibrated 2026-11-30 on NVIDIA H200",
        "contiguous copies: store 54.9 GB/s, load 55.3 GB/s",
        "GB/s       page  pages     dma  kernel  best",
        "store     4 KiB      1     3.0       -  dma",
        "store     4 KiB   1000     4.0    44.0  kernel",
        "store    64 KiB   1000    38.0    52.0  kernel",
        "store     2 MiB   1000    54.0    52.0  dma",
        "load      4 KiB   1000    50.0       -  dma",
    ]
    assert PathTable((), "built in: nothing").text() == "paths built in: nothing"


@pytest.mark.parametrize("path", paths.PATHS)
def test_names_of_paths(path):
    assert paths.check_path(path) == path


@pytest.mark.parametrize("value", ["kernels", "", "host", None, 1, ["dma"]])
def test_what_is_no_path_is_refused_with_what_is_allowed(value):
    with pytest.raises(kv.InvalidInput) as error:
        paths.check_path(value)
    assert f"path is {value!r}" in str(error.value)
    assert "auto, dma, kernel, staged" in str(error.value)
    assert ("did you mean 'kernel'" in str(error.value)) == (value == "kernels")


def test_sizes_of_the_ring():
    assert [paths.check_ring(value) for value in (0, "0", "0MiB", "256MiB", 32 << 20)] == [0, 0, 0, 256 << 20, 32 << 20]


@pytest.mark.parametrize("value", ["257MiB", "31MiB", 1, -1, None, False, True, "none", 0.5])
def test_what_is_no_ring_is_refused_with_what_is_allowed(value):
    with pytest.raises(kv.InvalidInput, match=r"ring is .* 0 for none"):
        paths.check_ring(value)
