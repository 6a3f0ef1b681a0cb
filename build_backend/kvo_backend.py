"""PEP 517 backend: scikit-build-core's setuptools plugin, plus NVIDIA's compiler from PyPI where it is needed.

pip asks `get_requires_for_build_wheel` what to put into its isolated build environment. With a GPU driver present (or
KVO_CUDA=ON) and no nvcc on the machine, that is CUDA 13.0's compiler parts; CMakeLists.txt finds them on sys.path.
"""

import os
import shutil

from scikit_build_core.setuptools import build_meta as _base
from scikit_build_core.setuptools.build_meta import (  # noqa: F401  (the hooks that pip looks for)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

# All of one minor version: ptxas, the headers and libcudart_static have to match.
CUDA_PARTS = [f"nvidia-cuda-{part}==13.0.*" for part in ("nvcc", "runtime", "crt", "cccl")] + ["nvidia-nvvm==13.0.*"]
DRIVER_MARKS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def cuda_requires() -> list[str]:
    """The PyPI packages that this machine needs to compile .cu files: none when it has nvcc or wants no CUDA."""
    wanted = os.environ.get("KVO_CUDA", "AUTO").upper()
    if wanted == "OFF" or os.environ.get("KVO_SKIP_CMAKE") or os.environ.get("CUDACXX"):
        return []
    if shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"):
        return []
    has_driver = any(os.path.exists(mark) for mark in DRIVER_MARKS)
    return CUDA_PARTS if wanted == "ON" or has_driver else []


def get_requires_for_build_wheel(config_settings=None):
    return [*_base.get_requires_for_build_wheel(config_settings), *cuda_requires()]


def get_requires_for_build_editable(config_settings=None):
    return [*_base.get_requires_for_build_editable(config_settings), *cuda_requires()]
