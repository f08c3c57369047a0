"""What a token and a patch cost the trainer: measured instead of reckoned.

Plans are balanced by a cost for each sample. By default it is reckoned in FLOPs from the model's ``config.json``. Where
step times say something else, write down what each step held and how long it took, and fit::

    for step in loader.steps():
        began = time.perf_counter()
        ...  # train, to the end of the device's work
        print(json.dumps({**stoker.costs.work_of(step), "seconds": time.perf_counter() - began}), file=records)

    stoker fit-costs records.jsonl --output costs.json      # then pack.cost_file: costs.json
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from stoker.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stoker.batch import Batch

__all__ = ["QWEN3_VL_8B", "Costs", "CostsFit", "fit_costs", "read_costs", "read_records", "work_of"]

_WORK = ("tokens", "tokens_squared", "patches", "patches_squared")
_COSTS = ("language_per_token", "language_per_token_pair", "vision_per_patch", "vision_per_patch_pair")
_LIMITS = (2**39, 2**15, 2**39, 2**15)
_PS_PER_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What planning multiplies with."""

    language_per_token: int
    language_per_token_pair: int
    """Times the square of a sample's tokens."""
    vision_per_patch: int
    vision_per_patch_pair: int
    """Times the square of the patches of each image or frame group."""
    unit: Literal["ps", "kflop"] = "ps"
    """Picoseconds, as `fit_costs` finds them, or thousands of FLOPs: for people; to a plan only ratios count."""

    @property
    def coefficients(self) -> tuple[int, int, int, int]:
        """In the order of the fields."""
        return (
            self.language_per_token,
            self.language_per_token_pair,
            self.vision_per_patch,
            self.vision_per_patch_pair,
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for ``pack.cost_file``."""
        content = {**dict(zip(_COSTS, self.coefficients, strict=True)), "unit": self.unit}
        Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


QWEN3_VL_8B = Costs(
    language_per_token=45_400_000,
    language_per_token_pair=885,
    vision_per_patch=2_720_000,
    vision_per_patch_pair=373,
    unit="kflop",
)
"""Forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsFit:
    """Costs and how well they say what was measured."""

    costs: Costs
    per_step_s: float
    """What every step takes, however little it holds."""
    mean_error: float
    """Mean of \\|said - measured\\| / measured."""
    n_steps: int


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Reads what `Costs.write` wrote.

    Raises:
        InvalidArgumentError: If there is no such file, or it says something else than the four integers.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"pack.cost_file {os.fspath(path)}: {error}", "SETTINGS") from error
    unit = content.pop("unit", "ps") if isinstance(content, dict) else None
    if unit not in ("ps", "kflop") or set(content) != set(_COSTS):
        raise InvalidArgumentError(
            f"pack.cost_file {os.fspath(path)}: expected an object with {', '.join(_COSTS)}, and unit: ps or kflop",
            "SETTINGS",
        )
    for name, limit in zip(_COSTS, _LIMITS, strict=True):
        value = content[name]
        least = 0 if name.endswith("pair") else 1
        if type(value) is not int or not least <= value < limit:
            raise InvalidArgumentError(
                f"pack.cost_file {os.fspath(path)}: {name} must be an integer from {least} to {limit - 1}, "
                f"not {value!r}",
                "SETTINGS",
            )
    return Costs(**content, unit=unit)


def work_of(step: Iterable[Batch]) -> dict[str, int]:
    """What the micro-batches of one rank's step hold, as planning counts it."""
    tokens = tokens_squared = patches = patches_squared = 0
    for batch in step:
        lengths = np.diff(batch.layout.cu_seqlens).astype(np.int64)
        tokens += int(lengths.sum())
        tokens_squared += int((lengths * lengths).sum())
        for t, height, width in (*batch.image_grid_thw, *batch.video_grid_thw):
            patches += t * height * width
            patches_squared += t * (height * width) ** 2
    return dict(zip(_WORK, (tokens, tokens_squared, patches, patches_squared), strict=True))


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads JSONL, one step a line.

    Raises:
        InvalidArgumentError: If there is no such file, or a line is no record; it is named.
    """
    records: list[dict[str, Any]] = []
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                record = json.loads(line)
                _check_record(record, f"{os.fspath(path)}, line {number}")
                records.append(record)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{os.fspath(path)}: {error}", "SETTINGS") from error
    return records


def _check_record(record: Any, where: str) -> None:
    wanted = (*_WORK, "seconds")
    if not isinstance(record, Mapping):
        raise InvalidArgumentError(f"{where}: expected an object with {', '.join(wanted)}", "SETTINGS")
    for key in wanted:
        value = record.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
            raise InvalidArgumentError(f"{where}: {key} must be a number from 0 on, not {value!r}", "SETTINGS")
    if record["seconds"] < 1e-9:
        raise InvalidArgumentError(f"{where}: a step in {record['seconds']} seconds", "SETTINGS")


def fit_costs(records: Sequence[Mapping[str, Any]]) -> CostsFit:
    """Finds the costs that say measured step times best: least squares of the relative error, none of them negative.

    Args:
        records: Steps of one rank: tokens, tokens_squared (summed over samples), patches, patches_squared (summed over
            images and frame groups), and seconds in which the rank did not wait for another.

    Raises:
        InvalidArgumentError: For a record that lacks something, or too few or too equal steps to tell costs apart.
    """
    for i, record in enumerate(records):
        _check_record(record, f"record {i}")
    times = np.array([record["seconds"] for record in records], dtype=np.float64)
    work = np.array([[record[key] for key in _WORK] for record in records], dtype=np.float64).reshape(-1, len(_WORK))
    columns = np.concatenate([work, np.ones((len(times), 1))], axis=1)  # the last: what every step takes
    scale = np.abs(columns).max(axis=0, initial=0.0)
    scaled = columns / np.where(scale > 0, scale, 1.0)
    if len(times) < 2 * columns.shape[1] or np.linalg.matrix_rank(scaled[:, scale > 0], tol=1e-6) < (scale > 0).sum():
        raise InvalidArgumentError(
            f"{len(times)} steps do not tell the costs of tokens and patches apart: record more steps, and more "
            "different ones",
            "SETTINGS",
        )
    found = _non_negative_least_squares(scaled / times[:, None], np.ones_like(times)) / np.where(scale > 0, scale, 1.0)
    said = columns @ found
    values = [min(round(c * _PS_PER_S), limit - 1) for c, limit in zip(found[:4], _LIMITS, strict=True)]
    costs = dict(zip(_COSTS, values, strict=True))
    for name in ("language_per_token", "vision_per_patch"):  # nothing is free, or plans would not spread it
        costs[name] = max(1, costs[name])
    return CostsFit(
        costs=Costs(**costs),
        per_step_s=float(found[4]),
        mean_error=float(np.mean(np.abs(said - times) / times)),
        n_steps=len(times),
    )


def _non_negative_least_squares(
    columns: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Of all sets of columns the one whose plain solution is not negative and fits best: exact, and there are 31."""
    n = columns.shape[1]
    best, least = np.zeros(n), float(wanted @ wanted)
    for size in range(1, n + 1):
        for chosen in itertools.combinations(range(n), size):
            found, *_ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)
            rest = wanted - columns[:, chosen] @ found
            if (found >= 0).all() and (error := float(rest @ rest)) < least:
                best, least = np.zeros(n), error
                best[list(chosen)] = found
    return best
