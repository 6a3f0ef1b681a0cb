"""The demo: two processes, the first of which is killed; what it says of a kill, an error and wrong bytes."""

import pytest

from kvoffload.cli import demo
from kvoffload.cli.replay import Totals
from kvoffload.traces import Request

pytest.importorskip("typer")


def request(*block_ids):
    return Request(timestamp_ms=0, input_tokens=512 * len(block_ids), output_tokens=1, block_ids=block_ids)


# The second half asks for what the first half stored; host memory has room for 16 blocks.
FIRST = [request(*range(first, first + 8)) for first in range(0, 48, 8)]
TRACE = FIRST + FIRST


def setting(folder, **options):
    return demo.Setting(**{"host": "8MiB", "disk": str(folder), "disk_size": "64MiB", "device_blocks": 16, **options})


def test_the_second_process_hits_what_the_first_wrote(tmp_path):
    (first, second), _ = demo.play(TRACE, setting(tmp_path))
    assert first.totals.requests + second.totals.requests == len(TRACE)
    assert 6 <= first.totals.requests < len(TRACE)
    assert second.known_blocks >= 5 * 8 - 8  # the last ones were on their way, or had just been passed over
    assert second.totals.disk_hit_blocks > 16
    totals = demo.total_of([first, second])
    assert totals.wrong_bytes == 0 and totals.verified_bytes == totals.loaded_bytes > 48 * (512 << 10)


def test_an_error_in_the_process_is_said_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match="kvoffload: disk_size"):
        demo.play(TRACE, setting(tmp_path, disk_size="1000TiB"))


def test_a_process_that_dies_by_itself_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="ended by itself: exit code 1"):
        demo.play(TRACE, setting(tmp_path, device_blocks=4))


@pytest.mark.parametrize("wrong_bytes", [0, 1])
def test_wrong_bytes_are_an_exit_status(tmp_path, monkeypatch, wrong_bytes):
    stats = {"evicted_keys": 0, "disk_evicted_keys": 0, "mover": {"disk": {"demoted_bytes": 0}}}
    lives = [demo.Life(Totals(wrong_bytes=wrong), stats, 0) for wrong in (wrong_bytes, 0)]
    monkeypatch.setattr(demo, "play", lambda *_: (lives, 1.0))
    if wrong_bytes:
        with pytest.raises(SystemExit, match="1"):
            demo.main(requests=2, disk=str(tmp_path), host="1GiB", device_blocks=512, disk_size="1GiB")
    else:
        demo.main(requests=2, disk=str(tmp_path), host="1GiB", device_blocks=512, disk_size="1GiB")
