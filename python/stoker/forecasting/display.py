"""Prints a forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from stoker.forecasting.forecast import MEETINGS

__all__ = ["show_forecast", "speed_said"]

_FATES = {"kept": "", "cut": ", cut to fit (pack.over_long: truncate_turns)", "dropped": ", left out: SEQ_TOO_LONG"}


def show_forecast(result: Mapping[str, Any], console: Console) -> None:
    """Prints what `stoker plan` found."""

    def say(name: str, text: str) -> None:
        shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
        console.print(f"{name:<12}{shown}", markup=False, soft_wrap=True)

    _say_data(result, say)
    as_set = result["policies"][0]
    packs = result["packs"]
    say(
        "packs",
        f"{as_set['packs']} of {packs['tokens_per_pack']} tokens: fill {as_set['fill']:.3f}, "
        f"padding {100 * as_set['padding']:.2f} %, longest {as_set['longest_pack']}",
    )
    a_step = as_set["per_step"]
    say(
        "a step",
        f"{packs['packs_per_step']} packs: {a_step['samples']:.1f} samples, {a_step['tokens']:.0f} tokens "
        f"({a_step['target_tokens']:.0f} trained), {a_step['images']:.1f} images, {a_step['clips']:.1f} clips",
    )
    say("an epoch", f"{result['walked']['positions_per_epoch']} samples, {as_set['steps_per_epoch']:.1f} steps")
    if as_set["packs_with_dummy"]:
        share = 100 * as_set["packs_with_dummy"] / as_set["packs"]
        say("dummies", f"{as_set['packs_with_dummy']} packs ({share:.1f} %) lack what pack.vision_uniform promises")
    if as_set["empty_packs"]:
        say("", f"{as_set['empty_packs']} empty packs complete the last step")
    console.print()
    if not result["walked"]["steps"]:
        say("steps", "not one: the data that was walked does not fill a step")
        return
    for k, ranks in enumerate(as_set["ranks"]):
        _show_table(result["policies"], k, console)
        _say_steps(ranks, say)
    say(
        "", f"total, language, vision: the most that a rank computes / the mean, over {result['walked']['steps']} steps"
    )
    say(
        "",
        f"seconds of a step {speed_said(result)}: what a rank computes in the mean, and the most",
    )
    say("", "lost: the share of a step in which ranks wait for each other, if they meet at its end, after each")
    say("", "micro-batch, or in vision and language of each micro-batch (sharded weights: FSDP, ZeRO-3)")


def speed_said(result: Mapping[str, Any]) -> str:
    """What makes seconds of a plan."""
    if result["is_fitted"]:
        return "as fitted (pack.cost_file)"
    return f"at {result['flops_per_s'] / 1e12:.1f} TFLOP/s a rank (--tflops)"


def _say_data(result: Mapping[str, Any], say: Callable[[str, str], None]) -> None:
    walked, data = result["walked"], result["data"]
    whole = "a whole epoch" if walked["positions"] >= walked["positions_per_epoch"] else "part of an epoch"
    known = f", {walked['positions_known']} known from the index" if walked["positions_known"] else ""
    say(
        "walked",
        f"{walked['positions']} positions of the order ({whole}) in {walked['elapsed_s']:.1f} s "
        f"({walked['positions_per_s']:.0f} rows/s{known})",
    )
    if data["unsized_samples"]:
        say(
            "TOO LOW",
            f"the sizes of {data['unsized_media']} media in {data['unsized_samples']} samples are not known, and what "
            "follows leaves them out: run `stoker index` with the same settings first, or read their headers with "
            "--measure",
        )
    if data["left_out"]:
        codes = ", ".join(f"{code} {n}" for code, n in sorted(data["left_out_by_code"].items(), key=lambda i: -i[1]))
        say("left out", f"{data['left_out']} samples: {codes}")
    tokens = data["sample_tokens"]
    if tokens["n"]:
        say(
            "samples",
            f"{tokens['n']} usable, tokens: half up to {tokens['p50']}, 99 % up to {tokens['p99']}, most "
            f"{tokens['most']}, mean {tokens['total'] / tokens['n']:.1f}",
        )
    if data["over_long"] or data["cut"]:
        say(
            "over-long",
            f"{data['over_long']} samples longer than a pack are left out, {data['cut']} lose turns from their end "
            "(pack.over_long)",
        )
    for i, row in enumerate(data["longest"]):
        media = "".join(f", {n} {kind}{'' if n == 1 else 's'}" for kind in ("image", "clip") if (n := row[f"{kind}s"]))
        say(
            "" if i else "longest",
            f"{row['manifest']}:{row['line']}: {row['tokens']} tokens{media}{_FATES[row['fate']]}",
        )


def _title(ranks: Mapping[str, Any]) -> str:
    n, m = ranks["dp_size"], ranks["micro_batches"]
    return f"{n} rank{'' if n == 1 else 's'}, {m} pack{'' if m == 1 else 's'} each"


def _show_table(policies: Sequence[Mapping[str, Any]], k: int, console: Console) -> None:
    phases = ("total", "language", "vision")
    heads = "".join(f"{phase:>9} {'worst':>5}" for phase in phases)
    lines = [f"{_title(policies[0]['ranks'][k]):<24}fill{heads}   busy s   step s   lost  micro  phase"]
    for policy in policies:
        ranks = policy["ranks"][k]
        uneven = (ranks["imbalance"][phase] for phase in phases)
        lines.append(
            f"  {policy['policy']:<20}{policy['fill']:>6.3f}"
            + "".join(f"{of['mean']:>9.3f} {of['worst']:>5.2f}" for of in uneven)
            + f"{ranks['busy_s']:>9.3f}{ranks['step_s']['per_step']:>9.3f}"
            + "".join(f"{100 * ranks['lost'][name]:>6.1f}%" for name in MEETINGS)
        )
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _say_steps(ranks: Mapping[str, Any], say: Callable[[str, str], None]) -> None:
    least = min(step[0] for step in ranks["steps_s"])
    most = max(step[2] for step in ranks["steps_s"])
    say("", f"as set, a step takes the ranks {least:.3f} to {most:.3f} s")
