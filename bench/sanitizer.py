"""sanitizer.py TOOL LOG: the number of errors that compute-sanitizer counted, as a raw result."""

import re
import sys
from pathlib import Path

import results

tool, log = sys.argv[1], Path(sys.argv[2])
# memcheck, initcheck: "ERROR SUMMARY: 0 errors"; racecheck: "RACECHECK SUMMARY: 0 hazards displayed (0 errors, ...".
found = [int(n) for n in re.findall(r"(?:ERROR SUMMARY: |hazards displayed \()(\d+) error", log.read_text())]
if not found:
    sys.exit(f"{log} has no summary: the checker did not finish")
results.write(tool, {f"{tool}.errors": sum(found)}, summaries=len(found))
