"""Stands in for fio: writes down what it was asked, and answers with figures of its own."""

import json
import os
import sys

options = dict(part[2:].partition("=")[::2] for part in sys.argv[1:])
with open(os.environ["FAKE_FIO_LOG"], "a") as log:
    log.write(json.dumps(options) + "\n")
if options["ioengine"] == "io_uring":
    sys.exit("fio: engine io_uring not loadable")
way, size = options["rw"], int(options["size"])
if way == "write":
    with open(options["filename"], "r+b") as file:  # no record is left
        file.seek(int(options["offset"]))
        file.write(bytes(size))
depth, block_bytes = int(options["iodepth"]), int(options["bs"])
speed = 1e9 if (depth, block_bytes) == (16, 1 << 20) else 5e8
percentiles = {"50.000000": 1000 * depth, "99.000000": 2000 * depth}
found = {"io_bytes": size, "bw_bytes": speed, "clat_ns": {"percentile": percentiles}}
runtime_ms = size / speed * 1e3
job = {way: found, "error": 0, "usr_cpu": 10.0, "sys_cpu": 15.0, "job_runtime": runtime_ms}
print("fio: a line that is no JSON\n" + json.dumps({"jobs": [job]}))
