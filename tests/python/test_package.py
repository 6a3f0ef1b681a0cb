"""The package as it is imported: light, and without a CUDA or torch library behind it."""

import shutil
import subprocess
import sys

import pytest

import kvoffload

READ_IMPORT = """
import os, sys
import kvoffload
heavy = {"torch", "cupy", "vllm", "rich", "typer", "matplotlib"} & set(sys.modules)
threads = len(os.listdir("/proc/self/task"))
print(sorted(heavy), threads)
"""


def test_import_is_light():
    alone = subprocess.run([sys.executable, "-c", READ_IMPORT], capture_output=True, text=True, check=True)
    bare = READ_IMPORT.replace("import kvoffload", "import numpy")
    numpy_alone = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=True)
    assert alone.stdout.startswith("[] ")
    assert alone.stdout == numpy_alone.stdout, "importing kvoffload started a thread"


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed")
def test_extension_needs_no_cuda_and_exports_one_name():
    def read(*options):
        command = ["readelf", "-W", *options, kvoffload._C.__file__]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    needed = [line.split("[")[1].rstrip("]") for line in read("-d").splitlines() if "(NEEDED)" in line]
    system = ("libstdc++.", "libgcc_s.", "libc.", "libm.", "libpthread.", "libdl.", "librt.", "ld-linux")
    assert needed, "readelf's output was not understood"
    assert [name for name in needed if not name.startswith(system)] == []
    symbols = [line.split() for line in read("--dyn-syms").splitlines()]
    exported = {s[7] for s in symbols if len(s) == 8 and s[4] in ("GLOBAL", "WEAK") and s[6] != "UND"}
    assert exported == {"PyInit__C"}
