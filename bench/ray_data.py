"""Stoker's workers on Ray beside Ray Data: the same rows, storage, cluster, ranks and step times, in one run.

A virtual cluster of five namespaces, once with network cards of 200 Mbit/s and once as fast as the machine. Four
ranks, each on a node of its own, train an emulated H100 on some four samples a step and meet at a barrier. They are fed

- by `stoker.Loader` with ``ray: auto``;
- by Ray Data: ``map`` with an actor on each node that gets a row's pictures by botocore and runs the Hugging Face
  processor (its Pillow backend), ``streaming_split(equal=True)`` with the ranks' nodes as hints, the next batch ahead.

Turn by turn; figures are means over the turns, without each turn's first step. CPU seconds are those of all processes
in the namespaces (Ray's own, storage server and trainers included); object-store bytes are those that the nodes' stores
took in, copies from other nodes included. At last, packs that all cross the network: their bytes and copies.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

N_NODES = 5
N_RANKS = 4
NICS_MBIT = {"200 Mbit/s": 200.0, "unlimited": None}
TURNS = 2
STEPS = 4
TOKENS_PER_PACK = 4096
BARS_BYTES = {"NIC bytes per visual token": 3100.0, "crossings per pack": 1.0, "copies per pack": 2.0}
BAR_WAIT = 0.02


# --- in the cluster


@dataclass(frozen=True, kw_only=True)
class RayDataTaker:
    """Makes a rank's taker over its share of a streaming split."""

    iterators: list[Any]
    samples_per_step: int

    def __call__(self, *, model: Any, rank: int, n_ranks: int) -> _Split:
        return _Split(self, model, rank)


class _Split:
    def __init__(self, spec: RayDataTaker, model: Any, rank: int) -> None:
        self._model = model
        self._batches = iter(
            spec.iterators[rank].iter_batches(
                batch_size=spec.samples_per_step, prefetch_batches=1, batch_format="numpy", drop_last=True
            )
        )

    def take(self) -> list[tuple[int, list[int]]]:
        """The next samples, collated as trainers do; returns their tokens and images' patches."""
        import numpy as np

        batch = next(self._batches)
        lengths = [len(ids) for ids in batch["input_ids"]]
        ids = np.zeros((len(lengths), max(lengths)), np.int64)
        for row, sample in zip(ids, batch["input_ids"], strict=True):
            row[: len(sample)] = sample
        np.concatenate(list(batch["pixel_values"]))
        patches = [[int(t) * int(h) * int(w) for t, h, w in grid] for grid in batch["grid"]]
        return list(zip(lengths, patches, strict=True))

    def weigh(self, data: list[tuple[int, list[int]]]) -> Any:
        from stoker.ladder.takers import weigh_samples

        return weigh_samples(self._model, data)

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class _Processor:
    """Makes one sample of a row, in an actor of Ray Data."""

    def __init__(self, spec: Any) -> None:
        from stoker.ladder.emulation import RankModel

        self._loop = spec(model=RankModel(n_gpus=1), rank=0, n_ranks=1)

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        sample = self._loop.prepare(item["base"], json.loads(item["row"]))
        pixels = sample["pixel_values"]
        return {
            "input_ids": np.asarray(sample["input_ids"], np.int64),
            "pixel_values": np.zeros((0, 1536), np.float32) if pixels is None else pixels,
            "grid": np.asarray(sample["image_grid_thw"], np.int64).reshape(-1, 3),
        }


class Measured:
    """What one turn gave."""

    def __init__(self, output: Any, n_steps: int, created_bytes: int) -> None:
        from stoker.ladder.result import summarise
        from stoker.ray.ladder.bounds import node_uses

        self.result = summarise("turn", output.records, digest_steps=0)
        self.uses = node_uses(output.before, output.after, {})
        self.reports = list(output.reports.values())
        n_samples = sum(record.n_samples for record in output.records if record.step > 0)
        self.n_patches = sum(record.n_patches for record in output.records if record.step > 0)
        self.values = {
            "samples/s": self.result.samples_per_s,
            "wait ratio": self.result.wait_ratio,
            "CPU s per sample": sum(use.cpu_s for use in self.uses) / n_samples,
            "object-store bytes per sample": created_bytes / sum(record.n_samples for record in output.records),
            "network bytes per sample": sum(use.received_bytes for use in self.uses) / n_samples,
        }


def _created_bytes() -> int:
    """That all nodes' stores have taken in since they began."""
    import ray
    from ray._private.internal_api import node_stats

    return sum(
        node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False).store_stats.cumulative_created_bytes
        for node in ray.nodes()
        if node["Alive"]
    )


class _Bench:
    def __init__(self, settings: Any, scratch: Path) -> None:
        import ray
        from stoker.ladder.emulation import RankModel
        from stoker.ladder.own import python_serial_of
        from stoker.ray.ladder.meters import Meter
        from stoker.ray.ladder.ranks import on_node

        self._settings = settings
        self._scratch = scratch
        self._serial = python_serial_of(settings)
        self._model = RankModel(n_gpus=1)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._head = next(n["NodeID"] for n in nodes if "node:__internal_head__" in n["Resources"])
        self._places = [n["NodeID"] for n in nodes if "node:__internal_head__" not in n["Resources"]][:N_RANKS]
        self._meters = {n["NodeID"]: ray.remote(Meter).options(**on_node(n["NodeID"])).remote(("e0",)) for n in nodes}
        self._turns = itertools.count()

    def _run(self, taker: Any) -> Measured:
        from stoker.ladder.ranks import RankJob
        from stoker.ray.ladder.ranks import run_ranks

        before = _created_bytes()
        job = RankJob(make_taker=taker, model=self._model, n_steps=1 + STEPS, digest_steps=0)
        output = run_ranks(job, places=self._places, meters=self._meters, on_step=lambda record: None)
        return Measured(output, 1 + STEPS, _created_bytes() - before)

    def stoker(self, *, prefetch_steps: int | str = "auto", **ray_settings: Any) -> Measured:
        from stoker.ladder.engine import Engine

        turn = next(self._turns)
        changes = {
            "ray": {"run": f"bench-{turn}", **ray_settings},
            "speed": {"prefetch_steps": prefetch_steps},
            "index_dir": str(self._scratch / str(turn)),
        }
        return self._run(Engine(settings=self._settings.replace(**changes)))

    def bytes(self) -> dict[str, float]:
        """What packs cost that cross the network; nothing is fetched ahead, so that none is on its way meanwhile."""
        placement = {"labels": {"ray.io/node-id": self._head}}
        found = self.stoker(prefetch_steps=0, placement=placement)
        counts = [report["ray"] for report in found.reports]
        n_packs = sum(of["packs"] for of in counts)
        return {
            "NIC bytes per visual token": sum(use.received_bytes for use in found.uses) / (found.n_patches / 4),
            "crossings per pack": sum(of["network_packs"] for of in counts) / n_packs,
            "copies per pack": sum(of["packs"] * of["copies_per_pack"] for of in counts) / n_packs,
        }

    def ray_data(self, samples_per_step: int) -> Measured:
        import ray.data
        from stoker.ladder.emulation import RankModel

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        rows = self._serial(model=RankModel(n_gpus=1), rank=0, n_ranks=1).rows
        n_rows = N_RANKS * samples_per_step * (STEPS + 4)
        items = [{"base": base, "row": json.dumps(row)} for base, row in itertools.islice(rows, n_rows)]
        dataset = ray.data.from_items(items, override_num_blocks=n_rows // 2).map(
            _Processor,
            fn_constructor_args=(self._serial,),
            compute=ray.data.ActorPoolStrategy(size=N_NODES),
            num_cpus=1,
        )
        iterators = dataset.streaming_split(N_RANKS, equal=True, locality_hints=self._places)
        return self._run(RayDataTaker(iterators=iterators, samples_per_step=samples_per_step))


def _inside(address: str, storage_host: str) -> dict[str, Any]:
    import ray
    from stoker.demo.run import DemoOptions, default_folder, served

    ray.init(address=address, log_to_driver=False, logging_level="error")
    options = DemoOptions(folder=default_folder() / "data")
    out: dict[str, list[dict[str, float]]] = {"stoker": [], "Ray Data": []}
    with (
        tempfile.TemporaryDirectory(prefix="stoker-bench-") as scratch,
        served(
            options,
            packs_per_step=N_RANKS,
            tokens_per_pack=TOKENS_PER_PACK,
            host=storage_host,
            say=lambda *progress: None,
        ) as data,
    ):
        settings = data.settings.replace(speed={"memory_limit": "512MiB"})
        bench = _Bench(settings, Path(scratch))
        for _ in range(TURNS):
            ours = bench.stoker()
            out["stoker"].append(ours.values)
            samples_per_step = max(1, round(ours.result.samples_per_step))
            out["Ray Data"].append(bench.ray_data(samples_per_step).values)
        of_packs = bench.bytes()
    ray.shutdown()
    return {"turns": out, "bytes": of_packs}


# --- outside


def run() -> list[dict[str, Any]]:
    """Measures the group."""
    from stoker.ray.cluster.virtual import missing_for_virtual

    if missing := missing_for_virtual():
        raise RuntimeError(missing)
    return [result for name, nic_mbit in NICS_MBIT.items() for result in _results(name, _on_cluster(nic_mbit))]


def _on_cluster(nic_mbit: float | None) -> dict[str, Any]:
    from stoker.ray.cluster.virtual import NodeSpec, VirtualCluster

    names = ["head", *(f"node{i}" for i in range(1, N_NODES))]
    specs = [NodeSpec(name=name, cpus=2, nic_mbit=nic_mbit, store_bytes=800_000_000) for name in names]
    with VirtualCluster(specs) as cluster, tempfile.NamedTemporaryFile() as answer:
        arguments = [cluster.address, cluster.nodes[0].storage_ip, answer.name]
        process = cluster.run_on("head", [sys.executable, str(Path(__file__).resolve()), *arguments])
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, "the part in the cluster")
        found: dict[str, Any] = json.loads(Path(answer.name).read_text())
    return found


def _results(nics: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    means = {
        who: {name: sum(turn[name] for turn in turns) / len(turns) for name in turns[0]}
        for who, turns in found["turns"].items()
    }
    out = []

    def tell(name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None) -> None:
        ok = (least is None or value >= least) and (most is None or value <= most)
        bar = least if most is None else most
        out.append({"name": f"NICs {nics}: {name}", "value": value, "unit": unit, "bar": bar, "ok": ok})

    for who, values in means.items():
        for name, value in values.items():
            tell(f"{who}: {name}", value, "", most=BAR_WAIT if (who, name) == ("stoker", "wait ratio") else None)
    ours, theirs = means["stoker"], means["Ray Data"]
    tell("samples/s, stoker / Ray Data", ours["samples/s"] / theirs["samples/s"], "times", least=1.0)
    for name in ("CPU s per sample", "object-store bytes per sample"):
        tell(f"{name}, Ray Data / stoker", theirs[name] / ours[name], "times", least=1.0)
    for name, value in found["bytes"].items():
        tell(f"stoker, packs from one other node: {name}", value, "", most=BARS_BYTES[name])
    return out


if __name__ == "__main__":
    address, storage_host, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(_inside(address, storage_host)), encoding="utf-8")
