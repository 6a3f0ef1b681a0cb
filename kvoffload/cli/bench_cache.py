"""`kvoffload bench cache`: a real trace through real host memory and a real disk, every byte checked."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvoffload.cache import KVCache
from kvoffload.cli.console import bar, errors_in_a_line
from kvoffload.cli.options import check_files, number_of
from kvoffload.cli.replay import LLAMA_3_1_8B, Device, Replay, Totals
from kvoffload.config import format_size, parse_size
from kvoffload.errors import InvalidInput
from kvoffload.traces import TOKENS_PER_TRACE_BLOCK, Request, conversation, parse

SETTLE_SECONDS = 10.0
# Keys that did not get where they should, by the ledger's names.
DROPS = {
    "dropped_keys": "not stored: host memory had no room",
    "undemoted_keys": "not written: gone before, or no slot on disk",
    "unadmitted_keys": "not written: not admitted",
    "over_budget_keys": "not written: over the day's bytes",
    "failed_keys": "failed",
}


@dataclasses.dataclass(frozen=True)
class CacheReport:
    """What came of it. disk: counters of the disk tier, and how it is used."""

    block_bytes: int
    host_bytes: int
    disk_bytes: int
    seconds: float
    totals: Totals
    written_bytes: int
    read_bytes: int
    evicted_keys: int
    disk_evicted_keys: int
    drops: dict[str, int]
    bad_records: dict[str, int]
    disk: dict[str, Any]

    @property
    def disk_hit_tokens(self) -> int:
        """Of the hits those behind what host memory had; they were there once the disk had been asked."""
        return min(self.totals.disk_hit_blocks * TOKENS_PER_TRACE_BLOCK, self.totals.hit_tokens)

    @property
    def host_hit_tokens(self) -> int:
        return self.totals.hit_tokens - self.disk_hit_tokens

    def as_dict(self) -> dict[str, Any]:
        tokens = {
            "host_hit_tokens": self.host_hit_tokens,
            "disk_hit_tokens": self.disk_hit_tokens,
            "hit_ratio": self.totals.hit_tokens / max(self.totals.tokens, 1),
        }
        return {**dataclasses.asdict(self), **tokens}


def cache(
    requests: Annotated[int, typer.Option(help="How many requests of the trace to play.")] = 200,
    trace: Annotated[Path | None, typer.Option(help="JSON lines in Mooncake's form, .gz too.")] = None,
    host: Annotated[str, typer.Option(help="Size of host memory.")] = "512MiB",
    disk_size: Annotated[str, typer.Option(help="Size on disk.")] = "4GiB",
    directory: Annotated[Path | None, typer.Option("--dir", help="Make the files below this directory.")] = None,
    tokens_per_block: Annotated[int, typer.Option(help="A block is so many tokens of Llama-3.1-8B.")] = 4,
    write_through: Annotated[bool, typer.Option("--write-through", help="Write at once, not ahead of need.")] = False,
    settle: Annotated[bool, typer.Option("--settle", help="Between requests the disk may finish its work.")] = False,
    admission: Annotated[str, typer.Option(help="all, second_touch or tinylfu.")] = "all",
    policy: Annotated[str, typer.Option(help="adaptive, lru, s3fifo or arc.")] = "adaptive",
    io: Annotated[str, typer.Option(help="auto, io_uring or threads.")] = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Play a request trace through host memory and disk, and check every byte that comes back."""
    with errors_in_a_line():
        check_files(json_file, None)
        number_of(requests, 10_000_000, "requests")
        number_of(tokens_per_block, 4096, "tokens-per-block")
        options = {
            "host": parse_size(host, "host"), "disk_size": parse_size(disk_size, "disk-size"), "disk_io": io,
            "write_through": write_through, "admission": admission, "policy": policy,
        }  # fmt: skip
        played = [request for request in itertools.islice(_requests(trace), requests) if request.block_ids]
        if not played:
            raise InvalidInput(f"trace is {str(trace)!r}, which has no request with a block")
        with _folder(directory) as folder:
            report = run(played, tokens_per_block, settle, {**options, "disk": folder})
    show(report, Console(highlight=False))
    if json_file:
        json_file.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    if report.totals.wrong_bytes:
        raise typer.Exit(1)


def run(requests: list[Request], tokens_per_block: int, settle: bool, options: dict[str, Any]) -> CacheReport:
    """Plays all requests, one after another, against a new cache."""
    longest = max(len(request.block_ids) for request in requests)
    device = Device(dataclasses.replace(LLAMA_3_1_8B, tokens_per_block=tokens_per_block), longest)
    began = time.perf_counter()
    with KVCache(device.layout, background=False, worth_loading="always", **options) as played:
        replay = Replay(device, played, TOKENS_PER_TRACE_BLOCK)
        with bar("playing") as progress:
            for request in progress.track(requests):
                replay.play(request)
                if settle:
                    _settle(played, options["write_through"])
        seconds = time.perf_counter() - began
        stats = played.stats()
        played.reset()  # so that closing has nothing to write
    disk = stats["mover"].pop("disk")
    failures = {name: disk["promotions"][name] + disk["demotions"][name] for name in disk["promotions"]}
    return CacheReport(
        block_bytes=device.layout.groups[0].block_bytes, host_bytes=options["host"], disk_bytes=options["disk_size"],
        seconds=seconds, totals=replay.totals, written_bytes=disk["demoted_bytes"], read_bytes=disk["promoted_bytes"],
        evicted_keys=stats["evicted_keys"], disk_evicted_keys=stats["disk_evicted_keys"],
        drops={name: stats[name] for name in DROPS},
        bad_records={name: count for name, count in failures.items() if count and name != "done"}, disk=disk,
    )  # fmt: skip


def _settle(played: KVCache, write_through: bool) -> None:
    """Until the disk has nothing to do: as beside a model that takes longer than it."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        stats = played.stats()
        if not stats["mover"]["disk"]["jobs"] and not (write_through and stats["waiting_for_disk_keys"]):
            return
        time.sleep(0.001)


def show(report: CacheReport, console: Console) -> None:
    """Everything, for people."""
    totals = report.totals
    console.print(
        f"[bold]kvoffload bench cache[/bold]: {totals.requests:,} requests, {format_size(report.block_bytes)} in place "
        f"of {TOKENS_PER_TRACE_BLOCK} tokens; host memory {format_size(report.host_bytes)}, disk "
        f"{format_size(report.disk_bytes)} ({report.disk['report']['io']})",
        soft_wrap=True,
    )
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for value, what in _rows(report):
        table.add_row(value, what)
    console.print(table)
    verdict = "[red]WRONG BYTES[/red]" if totals.wrong_bytes else "[green]every byte verified[/green]"
    console.print(f"{verdict}, {report.seconds:.1f} s in all (most of it making and comparing the test data)")


def _rows(report: CacheReport) -> Iterator[tuple[str, str]]:
    totals = report.totals

    def moved(count: int, what: str, seconds: float) -> tuple[str, str]:
        return f"{count / 1e9:.2f} GB", f"{what}, {count / max(seconds, 1e-9) / 1e9:.1f} GB/s from the call to the end"

    yield f"{totals.tokens:,}", "prompt tokens"
    yield f"{report.host_hit_tokens:,}", f"hit in host memory, {report.host_hit_tokens / max(totals.tokens, 1):.1%}"
    yield f"{report.disk_hit_tokens:,}", f"more hit with the disk, {report.disk_hit_tokens / max(totals.tokens, 1):.1%}"
    yield moved(totals.stored_bytes, "stored in host memory", totals.store_seconds)
    yield moved(totals.loaded_bytes, "loaded from host memory", totals.load_seconds)
    yield f"{report.written_bytes / 1e9:.2f} GB", "written to disk"
    yield f"{report.read_bytes / 1e9:.2f} GB", "read from disk"
    yield f"{report.evicted_keys:,}", f"keys evicted from host memory, {report.disk_evicted_keys:,} from disk"
    for name, count in report.drops.items():
        if count:
            yield f"{count:,}", f"keys {DROPS[name]}"
    for name, count in report.bad_records.items():
        yield f"{count:,}", f"records not right: {name}"
    yield f"{totals.verified_bytes:,}", f"bytes verified, {totals.wrong_bytes:,} wrong"


def _requests(trace: Path | None) -> Iterator[Request]:
    if trace is None:
        return conversation()
    try:
        return parse(trace.read_bytes())
    except OSError as error:
        raise InvalidInput(f"trace is {str(trace)!r}: {error.strerror}") from error


def _folder(below: Path | None) -> tempfile.TemporaryDirectory[str]:
    """One of its own: where other caches lie, these would have to make room."""
    if below is not None and not below.is_dir():
        raise InvalidInput(f"dir is {str(below)!r}; it must be a directory that exists")
    return tempfile.TemporaryDirectory(prefix="kvoffload-bench-", dir=below)
