"""Writes ``testdata/pictures``: one small file of each kind that a decoder must know, for conformance and fuzzing.

The committed files stay as they are; run this to add kinds. Needs Pillow, and pillow-heif for HEIC.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "testdata" / "pictures"
sys.path.insert(0, str(ROOT / "tests"))

from picture_variants import bmp, gif, palette_photo, photo, random_bytes, rle4, rle8, saved, tiff_tiled  # noqa: E402

ORIENTATION_6 = bytes.fromhex("4578696600004949 2a00 08000000 0100 1201 0300 01000000 06000000 00000000")
ORIENTATION_7 = ORIENTATION_6.replace(b"\x06", b"\x07")


def files() -> dict[str, bytes]:
    """Returns the files by name."""
    out: dict[str, bytes] = {
        "plain.gif": saved(palette_photo(37, 29, 60), "GIF", interlace=0),
        "interlaced.gif": gif((21, 17), (0, 0, 21, 17), global_colours=32, interlaced=True, seed=3),
        "placed.gif": gif((20, 16), (4, 3, 11, 9), local_colours=16, transparent=2, seed=4),
        "palette.bmp": saved(palette_photo(19, 13, 40), "BMP"),
        "two_colours.bmp": bmp(13, 9, 1, random_bytes(36, 1), palette=random_bytes(8, 2), top_down=True),
        "rgb.bmp": saved(photo("RGB", 17, 11), "BMP"),
        "bgra.bmp": saved(photo("RGBA", 9, 11), "BMP"),
        "565.bmp": bmp(9, 11, 16, random_bytes(220, 3), compression=3, masks=bytes.fromhex("00f80000e00700001f000000")),
        "rle8.bmp": bmp(23, 15, 8, rle8(23, 15, 1)[:-2], palette=random_bytes(1024, 5), compression=1),
        "rle4.bmp": bmp(23, 15, 4, rle4(23, 15, 2)[:-2], palette=random_bytes(64, 5), compression=2),
    }
    plain = photo("RGB", 21, 15)
    out["lossy.webp"] = saved(plain, "WEBP", quality=60)
    out["lossless.webp"] = saved(photo("RGBA", 13, 11), "WEBP", lossless=True)
    out["alpha.webp"] = saved(photo("RGBA", 21, 15), "WEBP", quality=50)
    out["exif.webp"] = saved(plain, "WEBP", quality=60, exif=ORIENTATION_6)
    frames = [photo("RGB", 19, 12, seed) for seed in range(2)]
    out["animated.webp"] = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=40)
    out["raw.tiff"] = saved(plain, "TIFF")
    out["lzw.tiff"] = saved(photo("RGBA", 13, 11), "TIFF", compression="tiff_lzw")
    out["packbits.tiff"] = saved(palette_photo(21, 15, 256), "TIFF", compression="packbits")
    out["tiled.tiff"] = tiff_tiled(40, 21, 3, 16, orientation=6)
    out["lossy.avif"] = saved(plain, "AVIF", quality=60, speed=8)
    out["alpha.avif"] = saved(photo("RGBA", 13, 11), "AVIF", quality=90, subsampling="4:4:4", speed=8)
    out["turned.avif"] = saved(plain, "AVIF", quality=60, speed=8, exif=ORIENTATION_7)
    out["animated.avif"] = saved(frames[0], "AVIF", save_all=True, append_images=frames[1:], quality=40, speed=8)
    out |= heic_files()
    return out


def heic_files() -> dict[str, bytes]:
    """Those that take a library of their own, if it is there."""
    try:
        import pillow_heif
    except ImportError:
        return {}
    pillow_heif.register_heif_opener()
    plain, alpha = photo("RGB", 21, 15), photo("RGBA", 24, 16)
    return {
        "lossy.heic": saved(plain, "HEIF", quality=60),
        "alpha.heic": saved(alpha, "HEIF", quality=90, chroma=444),
        "turned.heic": saved(plain, "HEIF", quality=60, exif=ORIENTATION_6),
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, data in files().items():
        path = FOLDER / name
        if not path.exists():
            path.write_bytes(data)


if __name__ == "__main__":
    main()
