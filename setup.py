"""Everything else is in pyproject.toml; this file only adds the CMake build of kvoffload._C."""

import os

from setuptools import setup

# The Makefile registers the package without compiling it (its own incremental build puts _C into the package).
setup(**({} if os.environ.get("KVO_SKIP_CMAKE") else {"cmake_source_dir": "."}))
