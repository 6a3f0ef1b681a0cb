"""Errors, by what the caller can do about them."""

from __future__ import annotations


class KVOffloadError(Exception):
    """Base of all errors raised by kvoffload."""


class InvalidInput(KVOffloadError, ValueError):
    """An argument is wrong. The message names what was given and what is allowed: change it."""


class UnsupportedLayout(InvalidInput):
    """The tensors' geometry is not understood. The message holds shape and strides."""


class Unsupported(KVOffloadError):
    """This build or machine cannot do it (no CUDA build, no driver, ...)."""


class QueueFull(KVOffloadError):
    """Too many transfers are in flight. Nothing was submitted: try again later, or raise `queue_depth`."""


class Closed(KVOffloadError):
    """The object was closed."""


class WaitTimeout(KVOffloadError, TimeoutError):
    """A deadline passed. The transfer goes on; wait again, or close."""


class MemoryLimit(KVOffloadError, MemoryError):
    """A memory limit or budget is too small. The message names asked, available and the option to change."""


class DeviceError(KVOffloadError, RuntimeError):
    """A CUDA call or a copy failed. The keys concerned are a miss."""


class Cancelled(KVOffloadError):
    """The transfer was cancelled before it started."""


class Forked(KVOffloadError):
    """The object was made before fork() and used in the child. Make it in the process that uses it."""


class MissingKey(KVOffloadError, KeyError):
    """A key to load is not ready in host memory. Look keys up first, or prefetch them."""

    def __str__(self) -> str:  # KeyError quotes its argument
        return Exception.__str__(self)
