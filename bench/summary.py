"""Makes bench/results/<machine>/summary.json from the raw files beside it; never write it by hand.

    summary.py bench/results/h200            write it
    summary.py --check bench/results/h200    fail if it is not what the raw files say

A flat map: key -> {"value", "raw" (file), "commit"}. Where several raw files have a key, the newest counts.
"""

import json
import sys
from pathlib import Path

SUMMARY = "summary.json"


def summarise(folder: Path) -> dict[str, dict[str, object]]:
    summary: dict[str, dict[str, object]] = {}
    raw = [(json.loads(path.read_text()), path) for path in folder.glob("*.json") if path.name != SUMMARY]
    for record, path in sorted(raw, key=lambda item: (item[0]["date"], item[1].name)):
        for key, value in record["metrics"].items():
            summary[key] = {"value": value, "raw": path.name, "commit": record["commit"]}
    return dict(sorted(summary.items()))


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    folders = [Path(a) for a in arguments if a != "--check"]
    if not folders:
        print(__doc__)
        return 2
    for folder in folders:
        text = json.dumps(summarise(folder), indent=1) + "\n"
        target = folder / SUMMARY
        if not check:
            target.write_text(text)
        elif not target.is_file() or target.read_text() != text:
            print(f"{target} is not what the raw files there say: run bench/summary.py {folder}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
