"""Encoded pictures of many kinds, made with Pillow or by hand, for comparison with Pillow's own reading."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

SIZES = [(1, 1), (3, 2), (17, 9), (40, 33)]
"""(width, height)."""


def photo(mode: str, width: int, height: int, seed: int = 0) -> Image.Image:
    """Ramps and noise, every channel and alpha included."""
    rng = np.random.default_rng(1000 * width + height + seed)
    channels = len(Image.new(mode, (1, 1)).getbands())
    y, x = np.mgrid[0:height, 0:width]
    ramp = (x[..., None] * 5 + y[..., None] * 3 + np.arange(channels) * 60) % 256
    pixels = np.where(
        rng.random((height, width, channels)) < 0.5, ramp, rng.integers(0, 256, (height, width, channels))
    )
    data = pixels.astype(np.uint8)
    return (
        Image.frombytes(mode, (width, height), data.tobytes()) if mode != "1" else Image.fromarray(data[..., 0] > 127)
    )


def palette_photo(width: int, height: int, n_colours: int, seed: int = 0) -> Image.Image:
    """A palette picture that uses indices 0 to n_colours - 1."""
    rng = np.random.default_rng(width + height + seed)
    image = Image.fromarray(rng.integers(0, n_colours, (height, width), dtype=np.uint8), "L")
    image = Image.frombytes("P", image.size, image.tobytes())
    image.putpalette(rng.integers(0, 256, 3 * n_colours, dtype=np.uint8).tobytes())
    return image


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


# ---- GIF


def lzw_literals(indices: bytes, bits: int) -> bytes:
    """A GIF code stream without compression: a clear code before the codes would grow."""
    codes: list[int] = []
    room = (1 << bits) - 2
    for i, index in enumerate(indices):
        if i % room == 0:
            codes.append(1 << bits)
        codes.append(index)
    codes.append((1 << bits) + 1)
    value = 0
    for i, code in enumerate(codes):
        value |= code << (i * (bits + 1))
    data = value.to_bytes((len(codes) * (bits + 1) + 7) // 8, "little")
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    return bytes([bits]) + blocks + b"\0"


def gif(
    screen: tuple[int, int],
    frame: tuple[int, int, int, int],
    *,
    global_colours: int = 0,
    local_colours: int = 0,
    transparent: int | None = None,
    interlaced: bool = False,
    seed: int = 0,
    version: bytes = b"GIF89a",
) -> bytes:
    """A GIF by hand: frame is (left, top, width, height)."""
    rng = np.random.default_rng(seed)
    _, _, width, height = frame

    def flags(n: int) -> int:
        return 0x80 | (max(1, (n - 1).bit_length()) - 1) if n else 0

    def palette(n: int) -> bytes:
        return bytes(rng.integers(0, 256, 3 << max(1, (n - 1).bit_length()), dtype=np.uint8)) if n else b""

    out = version + struct.pack("<HHBBB", *screen, flags(global_colours), 3, 0) + palette(global_colours)
    if transparent is not None:
        out += b"\x21\xf9\x04" + struct.pack("<BHB", 1, 0, transparent) + b"\0"
    out += b"\x21\xfe\x03abc\0"
    out += b"," + struct.pack("<HHHHB", *frame, flags(local_colours) | (0x40 if interlaced else 0))
    out += palette(local_colours)
    indices = rng.integers(0, 256, width * height, dtype=np.uint8).tobytes()
    return out + lzw_literals(indices, 8) + b";"


def gifs() -> Iterator[tuple[str, bytes]]:
    """All kinds of first frames."""
    for width, height in SIZES:
        yield f"palette_{width}x{height}", saved(palette_photo(width, height, 200), "GIF")
        yield f"grey_{width}x{height}", saved(photo("L", width, height), "GIF")
        yield f"few_{width}x{height}", saved(palette_photo(width, height, 5), "GIF", interlace=0)
        yield f"transparent_{width}x{height}", saved(palette_photo(width, height, 50), "GIF", transparency=3)
        yield f"rgba_{width}x{height}", saved(photo("RGBA", width, height), "GIF")
    yield "long_strings", saved(Image.new("P", (300, 200), 5), "GIF")
    frames = [palette_photo(30, 20, 9, seed) for seed in range(3)]
    yield "animated", saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)
    kinds = itertools.product([0, 16, 256], [0, 64], [None, 7], [False, True])
    for i, (global_colours, local_colours, transparent, interlaced) in enumerate(kinds):
        options: dict[str, Any] = {
            "global_colours": global_colours,
            "local_colours": local_colours,
            "transparent": transparent,
            "interlaced": interlaced,
        }
        yield f"whole_{i}", gif((23, 19), (0, 0, 23, 19), seed=i, **options)
        yield f"inside_{i}", gif((40, 30), (5, 7, 23, 19), seed=i, **options)
        yield f"beyond_{i}", gif((10, 8), (5, 3, 23, 19), seed=i, **options)
    yield "version_87", gif((9, 9), (0, 0, 9, 9), global_colours=8, version=b"GIF87a")
    yield "no_screen", gif((0, 0), (0, 0, 9, 5), global_colours=8)


# ---- BMP


def bmp(
    width: int,
    height: int,
    bits: int,
    data: bytes,
    *,
    palette: bytes = b"",
    colours: int = 0,
    compression: int = 0,
    masks: bytes = b"",
    header_size: int = 40,
    top_down: bool = False,
    offset: int | None = None,
) -> bytes:
    """A BMP by hand."""
    if header_size == 12:
        header = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        signed = -height if top_down else height
        header = struct.pack(
            "<IiiHHIIiiII", header_size, width, signed, 1, bits, compression, len(data), 2835, 2835, colours, 0
        )
        inside = masks if header_size > 40 else b""
        header += inside + bytes(header_size - 40 - len(inside))
    behind = masks if header_size == 40 else b""
    begin = 14 + len(header) + len(behind) + len(palette)
    head = b"BM" + struct.pack("<IHHI", begin + len(data), 0, 0, begin if offset is None else offset)
    return head + header + behind + palette + data


def random_bytes(n: int, seed: int) -> bytes:
    """n bytes."""
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8).tobytes()


def rle8(width: int, height: int, seed: int) -> bytes:
    """A run-length stream of whole rows with runs, literals and a delta."""
    rng = np.random.default_rng(seed)
    out = b""
    for y in range(height):
        x = 0
        while x < width:
            n = min(width - x, int(rng.integers(1, 9)))
            kind = int(rng.integers(0, 3))
            if kind == 0 and n >= 3:
                out += bytes([0, n]) + random_bytes(n, seed + x) + (b"\0" if n % 2 else b"")
            elif kind == 1 and n > 1:
                out += bytes([0, 2, n, 0])
            else:
                out += bytes([n, int(rng.integers(0, 256))])
            x += n
        out += b"\0\1" if y == height - 1 else b"\0\0"
    return out


def rle4(width: int, height: int, seed: int) -> bytes:
    """The same with two pixels in a byte."""
    rng = np.random.default_rng(seed)
    out = b""
    for y in range(height):
        x = 0
        while x < width:
            n = min(width - x, int(rng.integers(1, 12)))
            if int(rng.integers(0, 2)) == 0 and n >= 3:
                n_bytes = (n + 1) // 2
                out += bytes([0, n]) + random_bytes(n_bytes, seed + x) + (b"\0" if n_bytes % 2 else b"")
            else:
                out += bytes([n, int(rng.integers(0, 256))])
            x += n
        out += b"\0\1" if y == height - 1 else b"\0\0"
    return out


MASKS_32 = {
    "bgrx": (0xFF0000, 0xFF00, 0xFF, 0x0),
    "xbgr": (0xFF000000, 0xFF0000, 0xFF00, 0x0),
    "bgxr": (0xFF000000, 0xFF00, 0xFF, 0x0),
    "abgr": (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
    "rgba": (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
    "bgra": (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    "bgar": (0xFF000000, 0xFF00, 0xFF, 0xFF0000),
    "zero": (0, 0, 0, 0),
}


def bmps() -> Iterator[tuple[str, bytes]]:
    """All depths and layouts."""
    for width, height in SIZES:
        for mode in ("1", "L", "RGB", "RGBA"):
            yield f"{mode}_{width}x{height}", saved(photo(mode, width, height), "BMP")
        yield f"P_{width}x{height}", saved(palette_photo(width, height, 200), "BMP")
        for bits in (1, 4, 8, 16, 24, 32):
            data = random_bytes((width * bits + 31) // 32 * 4 * height, bits)
            palette = random_bytes(4 << bits, bits) if bits <= 8 else b""
            for top_down in (False, True):
                name = f"{bits}_bits_{width}x{height}_{'down' if top_down else 'up'}"
                yield name, bmp(width, height, bits, data, palette=palette, top_down=top_down)
            core_palette = random_bytes(3 << bits, bits) if bits <= 8 else b""
            yield f"core_{bits}_{width}x{height}", bmp(width, height, bits, data, palette=core_palette, header_size=12)
            if bits <= 8:
                n = (1 << bits) * 3 // 4
                short = palette[: 4 * n]
                yield f"short_palette_{bits}_{width}x{height}", bmp(width, height, bits, data, palette=short, colours=n)
                offset = 14 + 40
                yield f"no_offset_{bits}_{width}x{height}", bmp(width, height, bits, data, palette=palette, offset=0)
                yield (
                    f"bad_offset_{bits}_{width}x{height}",
                    bmp(width, height, bits, data, palette=palette, offset=offset),
                )
        data = random_bytes((width * 16 + 31) // 32 * 4 * height, 16)
        for name, masks in {"565": (0xF800, 0x7E0, 0x1F), "555": (0x7C00, 0x3E0, 0x1F)}.items():
            packed = struct.pack("<III", *masks)
            yield f"{name}_{width}x{height}", bmp(width, height, 16, data, compression=3, masks=packed)
        data = random_bytes(4 * width * height, 32)
        for name, masks4 in MASKS_32.items():
            packed = struct.pack("<IIII", *masks4)
            options: dict[str, Any] = {"compression": 3, "masks": packed}
            yield f"{name}_108_{width}x{height}", bmp(width, height, 32, data, header_size=108, **options)
            if name in {"bgrx", "xbgr", "bgxr"}:
                packed = packed[:12]
                yield f"{name}_40_{width}x{height}", bmp(width, height, 32, data, compression=3, masks=packed)
                yield (
                    f"{name}_52_{width}x{height}",
                    bmp(width, height, 32, data, compression=3, masks=packed, header_size=52),
                )
        palette = random_bytes(1024, 5)
        for seed in range(6):
            yield (
                f"rle8_{seed}_{width}x{height}",
                bmp(width, height, 8, rle8(width, height, seed), palette=palette, compression=1),
            )
            yield (
                f"rle4_{seed}_{width}x{height}",
                bmp(
                    width, height, 4, rle4(width, height, seed), palette=palette[:64], compression=2, top_down=seed == 5
                ),
            )


# ---- PNG


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """One chunk with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def png(
    width: int,
    height: int,
    depth: int,
    colour: int,
    *,
    seed: int = 0,
    trns: bytes = b"",
    late: bytes = b"",
    max_index: int = 0,
) -> bytes:
    """A PNG by hand, rows with random filters."""
    rng = np.random.default_rng(seed)
    row_bytes = (width * depth * PNG_CHANNELS[colour] + 7) // 8
    rows = []
    for _ in range(height):
        row = random_bytes(row_bytes, int(rng.integers(1 << 30)))
        if colour == 3 and depth == 8:
            row = bytes(b % max(1, max_index) for b in row)
        rows.append((b"\0" if colour == 3 else bytes([int(rng.integers(0, 5))])) + row)
    out = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    if colour == 3:
        n = max_index if depth == 8 else 1 << depth
        out += png_chunk(b"PLTE", random_bytes(3 * n, seed + 1))
    if trns:
        out += png_chunk(b"tRNS", trns)
    return out + png_chunk(b"IDAT", zlib.compress(b"".join(rows))) + late + png_chunk(b"IEND", b"")


def pngs() -> Iterator[tuple[str, bytes]]:
    """All colour types and depths, with and without transparency."""
    for width, height in SIZES:
        for colour, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
            for depth in depths:
                name = f"{colour}_{depth}_{width}x{height}"
                options: dict[str, Any] = {"seed": depth, "max_index": 200}
                yield name, png(width, height, depth, colour, **options)
                if colour == 0:
                    value = 3 if depth >= 8 else 0  # Pillow compares the scaled level
                    yield f"{name}_trns", png(width, height, depth, colour, trns=struct.pack(">H", value), **options)
                if colour == 2:
                    yield (
                        f"{name}_trns",
                        png(width, height, depth, colour, trns=struct.pack(">HHH", 9, 9, 9), **options),
                    )
                if colour == 3:
                    n = min(1 << depth, 100)
                    yield f"{name}_trns", png(width, height, depth, colour, trns=random_bytes(n, 7), **options)


# ---- WebP


def webps() -> Iterator[tuple[str, bytes]]:
    """Lossy and lossless, with alpha, animated with frames that do not fill the canvas."""
    for width, height in SIZES:
        for mode in ("RGB", "RGBA"):
            for quality in (5, 60, 95):
                yield f"{mode}_{quality}_{width}x{height}", saved(photo(mode, width, height), "WEBP", quality=quality)
            yield f"{mode}_lossless_{width}x{height}", saved(photo(mode, width, height), "WEBP", lossless=True)
            exact = saved(photo(mode, width, height), "WEBP", lossless=True, exact=True)
            yield f"{mode}_exact_{width}x{height}", exact
        for mode in ("RGB", "RGBA"):
            frames = [photo(mode, width, height, seed) for seed in range(3)]
            options: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "lossless": True}
            yield f"animated_{mode}_{width}x{height}", saved(frames[0], "WEBP", **options)
    partly = Image.new("RGBA", (60, 40), (0, 0, 0, 0))
    partly.paste(photo("RGBA", 20, 14), (18, 12))
    options = {"save_all": True, "append_images": [photo("RGBA", 60, 40)], "lossless": True}
    yield "placed", saved(partly, "WEBP", **options)


# ---- TIFF


def tiff_tiled(
    width: int, height: int, channels: int, tile: int, *, planar: bool = False, orientation: int = 1
) -> bytes:
    """A TIFF of tiles by hand, without compression, its directory at the end."""
    across, down = -(-width // tile), -(-height // tile)
    planes = channels if planar else 1
    n = across * down * planes
    size = tile * tile * (1 if planar else channels)
    data = random_bytes(n * size, width)
    offsets = [8 + i * size for i in range(n)]
    arrays = struct.pack(f"<{n}I", *offsets) + struct.pack(f"<{n}I", *([size] * n)) + struct.pack("<3H", 8, 8, 8)
    at = 8 + len(data)
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, channels, at + 8 * n if channels == 3 else 8),
        (259, 3, 1, 1),
        (262, 3, 1, 2 if channels == 3 else 1),
        (274, 3, 1, orientation),
        (277, 3, 1, channels),
        (284, 3, 1, 2 if planar else 1),
        (322, 4, 1, tile),
        (323, 4, 1, tile),
        (324, 4, n, at if n > 1 else offsets[0]),
        (325, 4, n, at + 4 * n if n > 1 else size),
    ]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", at + len(arrays)) + data + arrays + directory + bytes(4)


def tiffs() -> Iterator[tuple[str, bytes]]:
    """Modes by compression, strips of few rows, tiles, planes and orientations."""
    for width, height in SIZES:
        for mode in ("1", "L", "RGB", "RGBA", "CMYK", "LA"):
            for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
                name = f"{mode}_{compression}_{width}x{height}"
                yield name, saved(photo(mode, width, height), "TIFF", compression=compression)
        yield f"P_{width}x{height}", saved(palette_photo(width, height, 256), "TIFF", compression="tiff_lzw")
        yield f"group4_{width}x{height}", saved(photo("1", width, height), "TIFF", compression="group4")
        for mode in ("L", "RGB"):
            yield (
                f"jpeg_{mode}_{width}x{height}",
                saved(photo(mode, width, height), "TIFF", compression="jpeg", quality=90),
            )
        strips = {278: 5}
        yield (
            f"strips_{width}x{height}",
            saved(photo("RGB", width, height), "TIFF", compression="tiff_lzw", tiffinfo=strips),
        )
        for channels in (1, 3):
            yield f"tiled_{channels}_{width}x{height}", tiff_tiled(width, height, channels, 16)
        yield f"planes_{width}x{height}", tiff_tiled(width, height, 3, 16, planar=True)
    for orientation in range(1, 9):
        yield f"orientation_{orientation}", tiff_tiled(40, 33, 3, 16, orientation=orientation)
