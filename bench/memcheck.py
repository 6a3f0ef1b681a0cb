"""memcheck.py LOG: the number of errors that compute-sanitizer counted, as a raw result."""

import re
import sys
from pathlib import Path

import results

text = Path(sys.argv[1]).read_text()
found = [int(n) for n in re.findall(r"ERROR SUMMARY: (\d+) error", text)]
if not found:
    sys.exit(f"{sys.argv[1]} has no summary: the checker did not finish")
results.write("memcheck", {"memcheck.errors": sum(found)}, summaries=len(found))
