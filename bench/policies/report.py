"""Table and plot of the policies' hit ratios.

report.py bench/results/cpu-2core [docs/img/policies.png]
"""

import json
import sys
from pathlib import Path

from replay import CAPACITIES, POLICIES, TRACES

COLUMNS = (*POLICIES, "opt")


def load(folder: Path) -> dict[str, float]:
    return {key: entry["value"] for key, entry in json.loads((folder / "summary.json").read_text()).items()}


def table(values: dict[str, float]) -> str:
    """Markdown; `against`: the default minus the better of LRU and S3-FIFO."""
    lines = [f"| trace, blocks | {' | '.join(COLUMNS)} | against |", "|---" * (len(COLUMNS) + 2) + "|"]
    for trace in TRACES:
        for blocks in CAPACITIES:
            row = {column: values[f"trace.{trace}.{column}.{blocks}.hit_ratio"] for column in COLUMNS}
            cells = [f"**{row[c]:.3f}**" if c == "default" else f"{row[c]:.3f}" for c in COLUMNS]
            against = row["default"] - max(row["lru"], row["s3fifo"])
            lines.append(f"| {trace} {blocks:,} | {' | '.join(cells)} | {against:+.3f} |")
    return "\n".join(lines)


def plot(values: dict[str, float], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(TRACES), figsize=(9, 3.2), layout="constrained")
    styles = {"default": {"color": "black", "linewidth": 2}, "opt": {"color": "grey", "linestyle": ":"}}
    for axis, trace in zip(axes, TRACES, strict=True):
        for column in COLUMNS:
            ratios = [values[f"trace.{trace}.{column}.{blocks}.hit_ratio"] for blocks in CAPACITIES]
            axis.plot(CAPACITIES, ratios, label=column, **styles.get(column, {"linewidth": 1}))
        axis.set_xscale("log", base=2)
        axis.set_xticks(CAPACITIES, [f"{blocks // 1024}k" for blocks in CAPACITIES])
        axis.set(title=trace, xlabel="blocks of 512 tokens", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("hit ratio")
    axes[0].legend(frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=80)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    values = load(Path(sys.argv[1]))
    print(table(values))
    if len(sys.argv) > 2:
        plot(values, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
