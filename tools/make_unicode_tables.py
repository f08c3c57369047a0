"""Writes core/text/unicode_tables.cc, the character data of the tokenizer.

Classes (letter, number, white space) are Unicode 16.0 and come from the golden file that the reference library itself
filled. NFC is that of Unicode 9.0, which the reference froze: decompositions, compositions and combining classes never
change once a character exists, so they come from Python's `unicodedata` and everything younger than 9.0 is taken out
again: combining classes by the golden's list, compositions by the short list below. What results is checked against the
golden's list of characters that NFC changes alone.

    python tools/make_unicode_tables.py            writes the file
    python tools/make_unicode_tables.py --check    fails if the file on disk is another one
"""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "testdata" / "goldens" / "tokenizer_unicode.json"
TARGET = ROOT / "core" / "text" / "unicode_tables.cc"

N_CODE_POINTS = 0x110000
BLOCK = 128
HANGUL = range(0xAC00, 0xAC00 + 11172)
# Composites that came after Unicode 9.0. A later Python knows some of them; the reference does not compose them.
YOUNG_COMPOSITES = frozenset(
    (0x11938, 0x105C9, 0x105E4, 0x11383, 0x11385, 0x1138E, 0x11391, 0x113C5, 0x113C7, 0x113C8)
).union(
    range(0x16121, 0x16129),
    range(0x16D68, 0x16D6B),
)

LETTER, NUMBER, SPACE = 1, 2, 3
COMBINING, NOT_QUICK = 4, 8


def members(ranges: Iterable[list[int]]) -> list[int]:
    """Spells closed ranges out."""
    return [cp for first, last in ranges for cp in range(first, last + 1)]


def decompositions() -> dict[int, str]:
    """Full canonical decompositions, without Hangul, which is arithmetic."""
    out = {}
    for cp in range(N_CODE_POINTS):
        if cp in HANGUL or cp in YOUNG_COMPOSITES or 0xD800 <= cp < 0xE000:
            continue
        full = unicodedata.normalize("NFD", chr(cp))
        if full != chr(cp):
            out[cp] = full
    return out


def compositions() -> dict[tuple[int, int], int]:
    """Primary composites, without Hangul."""
    out = {}
    for cp in range(N_CODE_POINTS):
        if cp in HANGUL or cp in YOUNG_COMPOSITES:
            continue
        mapping = unicodedata.decomposition(chr(cp))
        if not mapping or mapping.startswith("<"):
            continue
        parts = [int(p, 16) for p in mapping.split()]
        if len(parts) == 2 and unicodedata.normalize("NFC", "".join(map(chr, parts))) == chr(cp):
            out[parts[0], parts[1]] = cp
    return out


def two_stage(values: bytearray) -> tuple[list[int], list[bytes]]:
    """Cuts a table of all code points into distinct blocks: (block of each BLOCK code points, the blocks)."""
    seen: dict[bytes, int] = {}
    stage1 = [seen.setdefault(bytes(values[i : i + BLOCK]), len(seen)) for i in range(0, len(values), BLOCK)]
    return stage1, list(seen)


def numbers(values: Iterable[int], per_line: int) -> str:
    """C++ initialiser text."""
    items = [str(v) for v in values]
    return ",\n".join("    " + ", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line))


def build() -> str:
    """The whole text of unicode_tables.cc."""
    golden = json.loads(GOLDEN.read_text())["data"]
    decomposed, composed = decompositions(), compositions()

    combining = bytearray(N_CODE_POINTS)
    for cp in members(golden["mark_that_nfc_reorders"]):
        combining[cp] = unicodedata.combining(chr(cp))
        if combining[cp] == 0 and cp not in decomposed:  # U+0F73 reorders by its decomposition
            version = unicodedata.unidata_version
            raise SystemExit(f"U+{cp:04X} has no combining class in this Python's Unicode {version}")

    flags = bytearray(N_CODE_POINTS)
    for name, bit in (("letter", LETTER), ("number", NUMBER), ("white_space", SPACE)):
        for cp in members(golden[name]):
            flags[cp] = bit
    changed_alone = {cp: nfc for cp in decomposed if (nfc := unicodedata.normalize("NFC", chr(cp))) != chr(cp)}
    if changed_alone != {cp: "".join(map(chr, nfc)) for cp, nfc in golden["changed_alone_by_nfc"]}:
        raise SystemExit("the characters that NFC changes alone are not the golden's")
    second = {b for _, b in composed} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for cp in changed_alone.keys() | second:
        flags[cp] |= NOT_QUICK
    for cp in range(N_CODE_POINTS):
        if combining[cp]:
            flags[cp] |= COMBINING

    pool: list[int] = []
    rows = []
    for cp, full in sorted(decomposed.items()):
        rows.append(f"    {{0x{cp:X}, {len(pool)}, {len(full)}}}")
        pool += map(ord, full)
    pairs = [f"    {{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for (a, b), c in sorted(composed.items())]

    flag_index, flag_blocks = two_stage(flags)
    combining_index, combining_blocks = two_stage(combining)
    for index in (flag_index, combining_index):
        if max(index) > 255:
            raise SystemExit("more than 256 distinct blocks: widen the index")
    parts = [
        "// Made by tools/make_unicode_tables.py; do not edit.",
        "// clang-format off",
        '#include "text/unicode.h"',
        "",
        "namespace stoker::text::unicode {",
        "",
        f"const std::uint8_t kFlagIndex[{len(flag_index)}] = {{\n{numbers(flag_index, 40)}}};",
        f"const std::uint8_t kFlagBlocks[{len(flag_blocks) * BLOCK}] = {{\n"
        + ",\n".join(numbers(b, 64) for b in flag_blocks)
        + "};",
        f"const std::uint8_t kCombiningIndex[{len(combining_index)}] = {{\n{numbers(combining_index, 40)}}};",
        f"const std::uint8_t kCombiningBlocks[{len(combining_blocks) * BLOCK}] = {{\n"
        + ",\n".join(numbers(b, 32) for b in combining_blocks)
        + "};",
        f"const char32_t kDecompositionPool[{len(pool)}] = {{\n{numbers(pool, 20)}}};",
        "static const Decomposition kRows[] = {\n" + ",\n".join(rows) + "};",
        "const std::span<const Decomposition> kDecompositions = kRows;",
        "static const Composition kPairs[] = {\n" + ",\n".join(pairs) + "};",
        "const std::span<const Composition> kCompositions = kPairs;",
        "",
        "}  // namespace stoker::text::unicode",
        "",
    ]
    return "\n".join(parts)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file on disk, write nothing")
    check = parser.parse_args().check
    text = build()
    if check:
        return 0 if TARGET.exists() and TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
