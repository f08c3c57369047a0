"""Writes a PNG file, so that a report with pictures needs no picture library."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["png_bytes"]


def png_bytes(pixels: npt.NDArray[np.uint8]) -> bytes:
    """The file of an (height, width, 3) picture (PNG, ISO/IEC 15948: 8-bit truecolour, each row differenced)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = 2  # filter "up"
    flat = pixels.reshape(height, 3 * width)
    rows[0, 1:] = flat[0]
    rows[1:, 1:] = flat[1:] - flat[:-1]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
