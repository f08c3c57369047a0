"""What a loader did and how long the trainer waited for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Report"]

_ODD_IN_CACHE = (
    ("changed", "changed in the store"),
    ("damaged", "damaged"),
    ("not_kept_up", "not kept because the disk is slower"),
    ("evicted", "evicted"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """Counts and times of one loader. `values` has everything; the properties are the few that matter most."""

    values: dict[str, Any]

    @property
    def wait_ratio(self) -> float:
        """Time blocked in the loader / step time, over whole steps after the first."""
        return float(self.values["wait_ratio"])

    @property
    def steps_measured(self) -> int:
        """Steps that `wait_ratio` is made of."""
        return int(self.values["steps_measured"])

    @property
    def first_wait_s(self) -> float:
        """Wait of the first step: the cold start, kept out of `wait_ratio`."""
        return float(self.values["first_wait_s"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, JSON-able."""
        return self.values

    def __str__(self) -> str:
        v = self.values
        lines = [
            f"wait ratio {self.wait_ratio:.4f} over {self.steps_measured} steps "
            f"(wait {v['wait_s']:.3f} s of {v['step_s']:.3f} s, longest {v['longest_wait_s']:.3f} s; "
            f"first step waited {self.first_wait_s:.3f} s)",
            f"delivered  {v['steps']} steps, {v['batches']} batches, {v['samples']} samples, {v['tokens']} tokens "
            f"(fill {v['fill']:.3f}), {v['bytes'] / 1e6:.1f} MB",
            f"speed      cpu_threads {v['cpu_threads']}, fetch_concurrency {v['fetch_concurrency']}, "
            f"prefetch_steps {v['prefetch_steps']}",
        ]
        if peers := v["peers"]:
            lines.append(self._peer_line(peers))
        if ray := v.get("ray"):
            lines += _ray_lines(ray)
        if v["bad_samples"]:
            lines.append("not used   " + ", ".join(f"{code} {n}" for code, n in sorted(v["bad_samples"].items())))
        if code := v["user_code"]:
            lines.append(
                f"user code  busy {code['busy_s']:.3f} s in {code['calls']} calls, "
                f"waited {code['wait_s']:.3f} s for the interpreter"
            )
        if v["pipeline"] and v["pipeline"].get("image_notes"):
            odd = sorted(v["pipeline"]["image_notes"].items())
            lines.append("odd        " + ", ".join(f"{name} {n}" for name, n in odd) + " (pictures used all the same)")
        if v["pipeline"] and v["pipeline"]["changed_media"]:
            lines.append(f"changed    {v['pipeline']['changed_media']} objects after their headers were read")
        if v["pipeline"]:
            lines += self._pipeline_lines(v["pipeline"])
        return "\n".join(lines)

    def _peer_line(self, peers: dict[str, Any]) -> str:
        if peers["rank"] > 0:
            return f"peers      {peers['rank']} of {peers['count']} on this node: peer 0 prepares"
        return (
            f"peers      {peers['count']} on this node, this one prepares: {peers['joined']} others came, "
            f"{peers['left']} have left; the slowest has yet to take {peers['unread']} batches"
        )

    def _pipeline_lines(self, p: dict[str, Any]) -> list[str]:
        fetch, memory, queues = p["fetch"], p["memory"], p["queues_mean_length"]
        lines = ["stage      busy s   waits for input s   waits for room s   items"]
        for name, s in p["stages"].items():
            lines.append(f"{name:<9}{s['busy_s']:8.3f}{s['wait_in_s']:20.3f}{s['wait_out_s']:19.3f}{s['items']:8d}")
        lines += [
            "queues     " + ", ".join(f"{name} {length:.2f}" for name, length in queues.items()) + " (mean length)",
            f"fetch      {fetch['requests']} requests ({fetch['header_requests']} for headers), "
            f"{fetch['bytes'] / 1e6:.1f} MB ({fetch['wire_bytes'] / 1e6:.1f} MB came over the network), "
            f"{fetch['shared']} of them asked for once with another, "
            f"at most {fetch['limit']} in flight, {fetch['retries']} retries, {fetch['throttled']} throttled, "
            f"{fetch['hedges']} late ones asked for twice ({fetch['hedges_won']} answered sooner)",
            *self._cache_lines(p["cache"]),
            f"memory     peak {memory['peak_bytes'] / 1e6:.1f} MB of {memory['limit_bytes'] / 1e6:.1f} MB, encoded "
            f"objects {memory['encoded_peak_bytes'] / 1e6:.1f} MB of {memory['encoded_limit_bytes'] / 1e6:.1f} MB",
        ]
        if fetch["failed_tries"]:
            by_code = ", ".join(f"{code} {n}" for code, n in sorted(fetch["failed_tries"].items()))
            lines.append(f"failures   {by_code} (tries, those that a later one made good included)")
        if p["samples_recalled"]:
            lines.append(
                f"index      {p['samples_recalled']} of {p['samples_planned']} samples were planned from it, without "
                "reading their rows and headers"
            )
        if p["samples_truncated"] or p["content_control_literals"]:
            lines.append(
                f"text       {p['samples_truncated']} samples cut at a turn, {p['content_control_literals']} control "
                "tokens in content kept as text"
            )
        workers_s = p["n_workers"] * p["elapsed_s"]
        busy = p["stages"]["prepare"]["busy_s"] / workers_s if workers_s > 0 else 0.0
        lines.append(f"workers    {p['n_workers']} threads, busy {busy:.2f} of the time")
        if self.steps_measured and self.wait_ratio > 0.01:
            lines.append(self._advice(busy))
        return lines

    def _cache_lines(self, cache: dict[str, Any] | None) -> list[str]:
        if cache is None:
            return []
        asked = cache["hits"] + cache["misses"]
        odd = [f"{cache[key]} {text}" for key, text in _ODD_IN_CACHE if cache[key]]
        return [
            f"cache      {cache['hits']} of {asked} requests ({cache['hits'] / max(asked, 1):.2f}) answered with "
            f"{cache['hit_bytes'] / 1e6:.1f} MB from disk; keeps {cache['share']:.2f} of all objects in "
            f"{cache['used_bytes'] / 1e9:.2f} of {cache['limit_bytes'] / 1e9:.2f} GB"
            + "".join(f", {one}" for one in odd)
        ]

    def _advice(self, workers_busy: float) -> str:
        v = self.values
        if v["prefetch_steps"] == 0:
            return "advice     nothing is prepared ahead: set speed.prefetch_steps to 4"
        if workers_busy > 0.85:
            return "advice     the CPU threads are the limit: give the process more CPUs (speed.cpu_threads)"
        memory = v["pipeline"]["memory"]
        if memory["peak_bytes"] > 0.9 * memory["limit_bytes"]:
            return "advice     memory is the limit: raise speed.memory_limit"
        return "advice     storage is the limit: raise speed.fetch_concurrency, then speed.prefetch_steps"


def _ray_lines(ray: dict[str, Any]) -> list[str]:
    choices, waits = ray["choices"], ray["waits_s"]
    if not choices:
        return [f"ray        has not joined {ray['coordinator']}"]
    lines = [
        f"ray        {choices['workers']} workers with {choices['worker_cpus']:g} CPUs each, {choices['placement']}; "
        f"hand-over by {choices['handover']}, retrieval {choices['retrieval']}",
        *(f"           {name}: {why}" for name, why in ray["why"].items()),
        f"packs      {ray['packs']}: {ray['local_packs']} made on this node ({ray['local_bytes'] / 1e6:.1f} MB), "
        f"{ray['network_packs']} elsewhere ({ray['network_bytes'] / 1e6:.1f} MB over the network); "
        f"{ray['copies_per_pack']:.2f} copies of each, {ray['mapped_packs']} mapped as they lie in the node's store",
        f"waits      {waits['no_handle']:.3f} s for packs that were not made yet, {waits['pull']:.3f} s for packs on "
        f"their way (longest pull {ray['longest_pull_s']:.3f} s, stragglers {ray['straggler_s']:.3f} s)",
    ]
    if ray["asked_again"]:
        lines.append(f"lost       {ray['asked_again']} packs were asked for again")
    if waits["no_handle"] > max(0.1, 2 * waits["pull"]):
        lines.append("advice     workers are too slow for the ranks: `stoker ray status` tells what they wait for")
    elif waits["pull"] > 0.1:
        lines.append("advice     the network between workers and ranks is the limit: placement local or spread")
    return lines
