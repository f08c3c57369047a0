"""Typed errors. The class says what to do; ``.code`` is one fixed name per kind of trouble (docs/errors.md)."""

from __future__ import annotations

__all__ = [
    "BadSampleError",
    "CancelledError",
    "ExhaustedError",
    "InternalError",
    "InvalidArgumentError",
    "StokerError",
    "UnavailableError",
]


class StokerError(Exception):
    """Base of all errors of Stoker.

    Attributes:
        message: What happened, naming file, line and cause where they are known.
        code: One fixed name, such as ``IMG_TRUNCATED``.
    """

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        super().__init__(message, code)  # both in `args`, so that the error pickles with its code
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class InvalidArgumentError(StokerError, ValueError):
    """The settings, the data as a whole, or the call are wrong: stop and read the message."""


class BadSampleError(StokerError, ValueError):
    """One sample cannot be used, and the policy is to stop."""


class UnavailableError(StokerError, OSError):
    """Something outside did not answer for too long; it may work later, and a run can resume."""

    def __str__(self) -> str:
        return StokerError.__str__(self)


class ExhaustedError(StokerError, MemoryError):
    """Over a limit of memory."""


class CancelledError(StokerError):
    """The loader was asked to stop while something waited in it."""


class InternalError(StokerError):
    """A bug of ours."""
