"""Compares `stoker.prepare` with the executed reference, live, on random pictures, conversations and texts.

    python tools/live_reference.py [--profiles NAME,NAME] [--pictures 5000] [--conversations 2000] [--texts 20000]

For every profile each random picture (sides of 1 to 4,000 pixels, ratios up to and above 200 : 1, PNG, JPEG and WebP in
all their modes, EXIF turns) and each random conversation (several turns, up to four pictures or clips) goes through
Stoker and through the processor that the profile names: ids, labels, positions, grids and pixels have to be equal bit
for bit, and what one side refuses the other has to refuse. Three quarters go through Qwen3-VL, the others through
Qwen2.5-VL. Both sides get the same decoded RGB; where the profile decodes as Pillow does, that is compared, too. Clips
of qvu+hf are resized in float32, where two samples in ten thousand may differ, by one level. Texts are compared without
a profile.

Prints counts; the exit status is 0 if all is equal, 1 if anything differs, 2 if it cannot be run.

Needs the built package and tools/golden/requirements.txt: transformers 5.18 runs stoker, hf-5.18-torchvision,
hf-5.18-pil and, with qwen-vl-utils 0.0.14, qvu+hf; 4.57.3 runs hf-4.57.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "golden"))

import live_texts
import numpy as np
import numpy.typing as npt
import torch
import torchvision_ops  # noqa: F401  (before anything that imports torchvision)
from live_cases import Asked, Chats, Clip, Conversation, File, random_file, random_sides, write
from PIL import Image, ImageOps
from stoker import BadSampleError, Settings, StokerError, decode_image, prepare
from stoker.parity.compare import are_one_level_apart, pixel_values
from stoker.parity.reference import GivenClip, GivenPicture, Reference, RefusedError

TESTDATA = Path(__file__).resolve().parent.parent / "testdata"
FAMILIES = ("qwen3-vl", "qwen2_5-vl")
FLOAT_BOUND = 2e-4
MOST_SHOWN = 20
Pixels = npt.NDArray[np.uint8]


def profiles_here() -> list[str]:
    """Those that the installed libraries are the reference of."""
    if importlib.metadata.version("transformers").startswith("4.57."):
        return ["hf-4.57"]
    names = ["stoker", "hf-5.18-torchvision", "hf-5.18-pil"]
    return names + ["qvu+hf"] * (importlib.util.find_spec("qwen_vl_utils") is not None)


def family_folders(scratch: Path) -> dict[str, Path]:
    """A checkpoint folder without weights for each family; that of Qwen2.5-VL has the tokenizer of Qwen3-VL."""
    folder = scratch / "qwen2_5-vl"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TESTDATA / "qwen3-vl" / name, folder / name)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    shutil.copy(TESTDATA / "qwen2_5-vl" / "preprocessor_config.json", folder)
    template = json.loads((TESTDATA / "qwen2_5-vl" / "chat_template.json").read_text())["chat_template"]
    (folder / "chat_template.jinja").write_text(template)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "vocab_size": 152064,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            **small,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 1,
            "num_heads": 2,
            "hidden_size": 32,
            "intermediate_size": 32,
            "out_hidden_size": 32,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
        },
        "image_token_id": 151655,
        "video_token_id": 151656,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return {"qwen3-vl": TESTDATA / "qwen3-vl", "qwen2_5-vl": folder}


def by_pillow(profile: str, body: bytes) -> Pixels | None:
    """What the profile's reference makes of a file that Pillow opened; None where the profile has rules of its own."""
    if profile == "stoker":
        return None
    with Image.open(io.BytesIO(body)) as opened:
        if profile == "hf-5.18-torchvision":
            return np.asarray(opened.convert("RGB"))
        if profile == "qvu+hf":
            from qwen_vl_utils import vision_process

            return np.asarray(vision_process.to_rgb(opened))
        return np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))


def differs(ours: Any, theirs: Any) -> bool:
    """Whether two arrays are not equal bit for bit."""
    if ours is None or theirs is None:
        return ours is not theirs
    a, b = np.ascontiguousarray(ours), np.ascontiguousarray(theirs)
    if a.dtype == np.float32:
        a, b = a.view(np.uint32), np.ascontiguousarray(theirs, np.float32).view(np.uint32)
    return not np.array_equal(a, b)


class Comparer:
    """Both sides of one profile and family."""

    def __init__(self, profile: str, folder: Path, media: Path, counts: Counter[str]) -> None:
        self.profile = profile
        self.counts = counts
        self._media = media
        self._settings = Settings.from_dict(
            {
                "data": [{"manifest": str(media / "none.jsonl")}],
                "model": str(folder),
                "reference": profile,
                "pack": {"tokens_per_pack": 2**24 - 1},
            }
        )
        self._reference = Reference(str(folder), profile)

    @property
    def description(self) -> str:
        """What is run."""
        return self._reference.description

    @property
    def has_clips(self) -> bool:
        """Whether the reference can process clips here."""
        return self._reference.has_torchvision

    def run(self, case: str, chat: Conversation) -> None:
        """Compares one conversation; what differs is counted and said."""
        files = [p.file for p in chat.pictures] + [frame for clip in chat.clips for frame in clip.frames]
        write(self._media, files)
        try:
            self._compare(case, chat)
        finally:
            for file in files:
                (self._media / file.name).unlink()

    def _compare(self, case: str, chat: Conversation) -> None:
        try:
            ours, refusal = prepare(chat.row, self._settings, media_root=str(self._media)), ""
        except BadSampleError as error:
            ours, refusal = None, str(error)
        pictures = [GivenPicture(pixels=self._decoded(case, p.file), asked=p.asked) for p in chat.pictures]
        clips = [self._clip(case, clip) for clip in chat.clips]
        try:
            theirs = self._reference.prepare(chat.messages, chat.tools, pictures, clips)
        except RefusedError as error:
            if ours is None:
                self.counts["refused by both"] += 1
            else:
                self._differ("refused by the reference only", case, str(error))
            return
        if ours is None:
            self._differ("refused by Stoker only", case, refusal)
            return
        self.counts["compared"] += 1
        self.counts["tokens"] += len(ours.input_ids)
        for name, a, b in (
            ("ids", ours.input_ids, theirs.input_ids),
            ("labels", ours.labels, theirs.labels),
            ("positions", ours.position_ids[1:], theirs.position_ids),
            ("image grids", np.asarray(ours.image_grid_thw), np.asarray(theirs.image_grid_thw)),
            ("clip grids", np.asarray(ours.video_grid_thw), np.asarray(theirs.video_grid_thw)),
        ):
            if differs(a, b):
                self._differ(name, case, f"{_first(a, b)}")
        self.counts["pictures"] += len(ours.media)
        self.counts["clips"] += len(ours.clips)
        if ours.media:
            made = pixel_values(ours, self._settings, "image")
            self.counts["picture samples"] += made.size
            if differs(made, theirs.pixel_values):
                self._differ("pixels of pictures", case, _first(made, theirs.pixel_values))
        if ours.clips:
            self._clip_pixels(case, pixel_values(ours, self._settings, "video"), theirs.pixel_values_videos)

    def _clip_pixels(self, case: str, ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32] | None) -> None:
        self.counts["clip samples"] += ours.size
        if not differs(ours, theirs):
            return
        if self.profile == "qvu+hf" and theirs is not None and ours.shape == theirs.shape:
            self.counts["clip samples apart"] += int((ours != theirs).sum())
            if are_one_level_apart(ours, theirs, self._settings):
                return
        self._differ("pixels of clips", case, _first(ours, theirs))

    def _decoded(self, case: str, file: File) -> Pixels:
        pixels = decode_image(file.body, reference=self.profile)
        wanted = by_pillow(self.profile, file.body)
        if wanted is not None:
            self.counts["decoded"] += 1
            if differs(pixels, wanted):
                self._differ("decoding", case, f"{file.name}: {_first(pixels, wanted)}")
        return pixels

    def _clip(self, case: str, clip: Clip) -> GivenClip:
        rate = clip.frames_per_s
        if rate is None and self.profile == "stoker":
            rate = 2.0  # the profile's own fact
        return GivenClip(
            frames=[self._decoded(case, frame) for frame in clip.frames],
            frames_per_s=rate,
            source_frames_per_s=clip.source_frames_per_s,
            asked=clip.asked,
        )

    def _differ(self, what: str, case: str, how: str) -> None:
        self.counts[f"DIFFER {what}"] += 1
        if sum(n for name, n in self.counts.items() if name.startswith("DIFFER")) <= MOST_SHOWN:
            print(f"{self.profile}: {what} differ: {case}: {how}", file=sys.stderr, flush=True)


def _first(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return f"shapes {getattr(ours, 'shape', None)} and {getattr(theirs, 'shape', None)}"
    places = np.argwhere(ours != theirs)
    at = tuple(int(i) for i in places[0]) if len(places) else ()
    return f"{len(places)} of {ours.size}, first at {list(at)}: {ours[at]!r} and {theirs[at]!r}"


def picture_row(number: int, file: File) -> Conversation:
    """One picture in a short conversation."""
    question = [{"type": "image", "image": file.name}, {"type": "text", "text": f"What is in number {number}?"}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"Number {number}, {file.size}."},
    ]
    return Conversation(row={"messages": messages}, messages=messages, tools=[], pictures=[Asked(file=file)])


def compare(
    profile: str,
    *,
    n_pictures: int,
    n_conversations: int,
    seed: int,
    largest_side: int,
    say: Callable[[str], None],
    families: Sequence[str] = FAMILIES,
) -> Counter[str]:
    """Runs one profile; counters that should be zero begin with ``DIFFER``."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        folders = family_folders(scratch)
        sides = [Comparer(profile, folders[name], scratch, counts) for name in families]
        say(f"{profile}: {sides[0].description}")
        for i in _progress(n_pictures, f"{profile}: pictures", say):
            rng = random.Random(f"picture {seed} {i}")
            file = random_file(rng, f"picture-{i}", random_sides(rng, largest_side))
            sides[_second(i) % len(sides)].run(
                f"picture {i} of seed {seed}, {file.name}, {file.size}", picture_row(i, file)
            )
        texts = live_texts.Texts(seed, live_texts.reference())
        chats = Chats(seed, texts, asks_for_sizes=profile == "qvu+hf", has_clips=sides[0].has_clips)
        for i in _progress(n_conversations, f"{profile}: conversations", say):
            # The template of Qwen2.5-VL has no place for tools, which Stoker refuses to lose.
            chat = chats.next(i, may_have_tools=not _second(i))
            sides[_second(i) % len(sides)].run(f"conversation {i} of seed {seed}", chat)
    if counts["clip samples apart"] > FLOAT_BOUND * counts["clip samples"]:
        counts["DIFFER pixels of clips"] += 1
    return counts


def _second(i: int) -> int:
    """1 for the cases of the second family, a quarter of all."""
    return int(i % 4 == 3)


def _progress(n: int, what: str, say: Callable[[str], None]) -> Iterator[int]:
    began = time.monotonic()
    for i in range(n):
        yield i
        if (i + 1) % max(1, n // 10) == 0:
            say(f"{what}: {i + 1} of {n}, {time.monotonic() - began:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog="Exit status: 0 equal, 1 something differs, 2 not run."
    )
    parser.add_argument("--profiles", default=",".join(profiles_here()), help="default: all that are installed here")
    parser.add_argument("--pictures", type=int, default=5000, help="of each profile")
    parser.add_argument("--conversations", type=int, default=2000, help="of each profile")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest-side", type=int, default=4000)
    parser.add_argument("--json", type=Path, help="also write the counts there")
    options = parser.parse_args()
    os.environ.setdefault("XDG_CACHE_HOME", tempfile.gettempdir())
    torch.set_num_threads(1)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    results: dict[str, Counter[str]] = {}
    try:
        for profile in filter(None, options.profiles.split(",")):
            results[profile] = compare(
                profile,
                n_pictures=options.pictures,
                n_conversations=options.conversations,
                seed=options.seed,
                largest_side=options.largest_side,
                say=say,
            )
            print_counts(profile, results[profile])
    except StokerError as error:
        say(f"live_reference: {error}")
        return 2
    if options.texts:
        different = live_texts.differing(options.texts, options.seed)
        results["texts"] = Counter({"compared": options.texts, "DIFFER ids": len(different)})
        print_counts("texts", results["texts"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(n for counts in results.values() for name, n in counts.items() if name.startswith("DIFFER")))


def print_counts(name: str, counts: Counter[str]) -> None:
    for key, n in sorted(counts.items()):
        print(f"{name:<22}{key:<32}{n}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
