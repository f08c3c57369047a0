"""Trains a tiny Qwen3-VL on the CPU, saves checkpoints, and resumes exactly where it stopped.

    python examples/train_tiny.py --steps 20 --checkpoint-dir build/tiny
    python examples/train_tiny.py --steps 40 --checkpoint-dir build/tiny --resume

The model has random weights and learns nothing of use; the loop around it is the one that a real run has. The data are
those of `stoker demo`, less the long answers and with smaller pictures. --storage serves them from an emulated S3,
--settings takes your own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stoker
import stoker.torch
import torch
from stoker.demo import find_testdata, make_dataset
from stoker.demo.run import default_folder
from stoker.testing import StorageServer
from transformers import AutoConfig, AutoModelForImageTextToText

LARGEST_SIDE_PX = 320  # of the demonstration's pictures here
LONGEST_ANSWER = 160  # characters; a logit for each of 150,000 tokens per target is most of the work
N_KEPT = 2  # checkpoints


def main() -> int:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # sums in one order, so that a resumed run gives the same losses to the last bit
    torch.use_deterministic_algorithms(True)
    with contextlib.ExitStack() as stack:
        settings = stoker.Settings.load(args.settings) if args.settings else stack.enter_context(demo_settings(args))
        log = stack.enter_context(args.log.open("a", encoding="utf-8")) if args.log else None
        loader = stack.enter_context(stoker.Loader(settings))
        for record in train(loader, settings.model, args):
            print("step {step:4d}  loss {loss:.6f}  wait {wait_s:.3f} s of {step_s:.3f} s".format(**record), flush=True)
            if log is not None:
                log.write(json.dumps(record) + "\n")
                log.flush()
        print(loader.report())
    return 0


def train(loader: stoker.Loader, model_folder: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what to tell about each step."""
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(model_folder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    n_done = load_latest(args.checkpoint_dir, model, optimizer, loader) if args.resume else 0
    steps = stoker.torch.batches(loader).steps()
    while n_done < args.steps:
        began = time.perf_counter()
        step = next(steps, None)
        if step is None:  # only where settings.epochs is set
            return
        wait_s = time.perf_counter() - began
        total = 0.0
        for batch in step:
            loss = loss_of(model, batch)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        n_done = step[0].counts.step + 1
        yield {"step": n_done, "loss": total, "wait_s": wait_s, "step_s": time.perf_counter() - began}
        if args.checkpoint_dir is not None and (n_done % args.save_every == 0 or n_done >= args.steps):
            save(args.checkpoint_dir, n_done, model, optimizer, loader)


def loss_of(model: Any, batch: stoker.torch.TorchBatch) -> Any:
    """This micro-batch's share of the step's mean over all target tokens.

    ``model(**batch.inputs, num_items_in_batch=...)`` alone gives the same. Logits are made here only where something is
    to be predicted: over a vocabulary of 150,000 they would be most of a small model's work.
    """
    next_labels = batch.inputs["labels"][0, 1:]
    is_target = next_labels != -100
    return model(
        **batch.inputs,
        logits_to_keep=is_target.nonzero()[:, 0],
        shift_labels=next_labels[is_target][None],
        num_items_in_batch=batch.counts.step_target_tokens,  # known before the first backward pass, over all ranks
    ).loss


# --- checkpoints


def save(folder: Path, n_done: int, model: Any, optimizer: Any, loader: stoker.Loader) -> None:
    """Writes one file that is either there in full or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{n_done:08d}.pt"
    unfinished = target.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}, file
        )
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(target)
    for old in sorted(folder.glob("step-*.pt"))[:-N_KEPT]:
        old.unlink()


def load_latest(folder: Path, model: Any, optimizer: Any, loader: stoker.Loader) -> int:
    """Restores all three from the newest checkpoint; returns how many steps were done, 0 if there is none."""
    saved = sorted(folder.glob("step-*.pt"))
    if not saved:
        print(f"no checkpoint in {folder}: from the start")
        return 0
    state = torch.load(saved[-1], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return int(state["loader"]["step"])


# --- data


@contextlib.contextmanager
def demo_settings(args: argparse.Namespace) -> Iterator[stoker.Settings]:
    """The demonstration's data in a folder, or behind an emulated S3 for as long as the context lasts."""
    manifest = small_dataset(default_folder(), n_samples=args.samples)
    values: dict[str, Any] = {
        "data": [{"manifest": str(manifest)}],
        "model": str(find_testdata() / "qwen3-vl"),
        "seed": args.seed,
        "window_samples": 256,
        "pack": {"tokens_per_pack": 512, "packs_per_step": 2},
        "speed": {"prefetch_steps": 2, "memory_limit": "1GiB"},
    }
    if not args.storage:
        yield stoker.Settings.from_dict(values)
        return
    with StorageServer() as server:
        server.put_folder("tiny", manifest.parent)
        values |= {"data": [{"manifest": f"s3://tiny/{manifest.name}"}], "storage": server.settings()}
        yield stoker.Settings.from_dict(values)


def small_dataset(cache: Path, *, n_samples: int) -> Path:
    """Makes the demonstration's data with pictures that a CPU can train on; returns the manifest."""
    from PIL import Image

    large = make_dataset(cache, n_samples=n_samples)
    small = large.folder.with_name(f"{large.folder.name}-{LARGEST_SIDE_PX}px")
    if small.is_dir():
        return small / large.manifest.name
    unfinished = small.with_name(f".making-{small.name}-{os.getpid()}")
    (unfinished / "images").mkdir(parents=True, exist_ok=True)
    for path in sorted((large.folder / "images").iterdir()):
        with Image.open(path) as picture:
            picture.thumbnail((LARGEST_SIDE_PX, LARGEST_SIDE_PX))
            picture.save(unfinished / "images" / path.name)
    with large.manifest.open(encoding="utf-8") as rows, (unfinished / large.manifest.name).open("w") as out:
        for row in map(json.loads, rows):
            if n_answer_characters(row) <= LONGEST_ANSWER:
                out.write(json.dumps({key: row[key] for key in row if key not in ("width", "height")}) + "\n")
    with contextlib.suppress(OSError):  # another process may have just made it
        unfinished.rename(small)
    return small / large.manifest.name


def n_answer_characters(row: dict[str, Any]) -> int:
    said = [(turn["from"], turn["value"]) for turn in row.get("conversations", ())]
    said += [(turn["role"], turn["content"]) for turn in row.get("messages", ())]
    return sum(len(text) for role, text in said if role in ("gpt", "assistant"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps in all, those before a resume included")
    parser.add_argument("--checkpoint-dir", type=Path, help="where checkpoints are written; none are by default")
    parser.add_argument("--save-every", type=int, default=4, metavar="N", help="steps between checkpoints (default 4)")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint in --checkpoint-dir")
    parser.add_argument("--settings", type=Path, metavar="YAML", help="your own data; by default the demonstration's")
    parser.add_argument("--storage", action="store_true", help="read the demonstration's data from an emulated S3")
    parser.add_argument(
        "--samples", type=int, default=96, help="rows of the demonstration's data to choose from (default 96)"
    )
    parser.add_argument("--log", type=Path, metavar="JSONL", help="append one line of JSON per step")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default 0)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    args = parser.parse_args()
    if args.resume and args.checkpoint_dir is None:
        parser.error("--resume needs --checkpoint-dir")
    return args


if __name__ == "__main__":
    sys.exit(main())
