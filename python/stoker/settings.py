"""What a run is made of: one group of settings decides what comes out, the other only how fast."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from stoker.errors import InvalidArgumentError
from stoker.plain_values import SECRET, build, parse_bytes
from stoker.ray_settings import RaySettings

__all__ = [
    "BadSamples",
    "Cache",
    "Chunks",
    "Data",
    "Labels",
    "Media",
    "Pack",
    "RaySettings",
    "Settings",
    "Speed",
    "Split",
    "Storage",
    "UserCode",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One manifest."""

    manifest: str
    """A path, taken from the settings file's folder if relative, or ``s3://bucket/key``.

    JSONL, plain or packed by gzip or zstd, or one JSON list; found out from the content. A path may be a pattern:
    ``parts/*.jsonl``.
    """
    media_root: str = ""
    """Where relative media lie; the manifest's own folder by default."""
    shape: Literal["auto", "messages", "conversations", "prompt-completion", "query-response", "instruction"] = "auto"
    """The form of the rows; auto: decided row by row by their keys, and a row that fits two is a bad sample."""
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Keys that the rows call otherwise: ``{messages: dialog, role: speaker, images: pics}``."""
    roles: Mapping[str, Literal["system", "user", "assistant", "tool", "developer", "tool_call"]] = field(
        default_factory=dict, hash=False
    )
    """Words for roles beside the usual ones: ``{bot: assistant}``."""
    nonfinite: Literal["reject", "null"] = "reject"
    """Whether ``NaN`` and ``Infinity``, which JSON does not have, make a row bad or count as null."""
    max_row_bytes: int | str = "256MiB"
    """A longer row is a bad sample."""
    weight: float | None = None
    """Part of every epoch that its rows are, among the weights of all entries; all entries have one or none. An epoch
    then has as many samples as there are rows. To a millionth; at least that."""
    repeat: float | None = None
    """How often its rows come in an epoch: 2 twice, 0.25 a quarter of them, the next epoch the next quarter."""
    samples: int | None = None
    """How many samples it gives to an epoch; the next epoch goes on where this one stopped."""

    def share(self) -> tuple[str, int]:
        """What the engine is told of `weight`, `repeat` and `samples`."""
        if self.weight is not None:
            return "weight", round(self.weight * 10**6)
        if self.repeat is not None:
            return "repeat", round(self.repeat * 10**6)
        return ("once", 1) if self.samples is None else ("samples", self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A part of the rows that is kept apart from training, such as for evaluation.

    Which side a row is on follows from its own bytes (its line without the line end) and `key`, nothing else: it stays
    there when the manifest grows, is merged or put in another order, and equal rows are on one side. A larger share
    holds out all that a smaller one does.
    """

    held_out: float = 0.0
    """The share of all rows that is held out, to a millionth; 0: no split."""
    use: Literal["train", "held_out"] = "train"
    """Which side this run reads. An evaluation: ``{held_out: 0.01, use: held_out}`` with ``epochs: 1``."""
    key: str = ""
    """Another text holds out other rows. The run's `seed` does not matter."""

    def millionths(self) -> int:
        """What the engine is told of `held_out`."""
        return round(self.held_out * 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How ``shuffle: chunked`` cuts up the manifests."""

    size: int | str = "64MiB"
    """Bytes of a chunk; a row belongs to the chunk in which it begins."""
    per_group: int = 4
    """Chunks whose rows are shuffled together. A group is read at once: with the defaults 256 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """How samples become micro-batches."""

    tokens_per_pack: int = 16384
    """Length of one packed sequence, at most."""
    packs_per_step: int = 64
    """Packs of one optimizer step, over all ranks and micro-batches; a multiple of dp_size."""
    over_long: Literal["drop", "truncate_turns"] = "drop"
    """What happens to a sample longer than a pack: it is a bad sample (SEQ_TOO_LONG), or whole turns go from its end,
    with their pictures, until it fits and ends with a trained turn; if that cannot be, it is a bad sample."""
    form: Literal["packed", "samples", "token_budget"] = "packed"
    """Samples one after another in one sequence; or `samples_per_pack` rows, padded to the longest, none longer than
    `tokens_per_pack`; or as many padded rows as fit: rows times the longest at most `tokens_per_pack`."""
    samples_per_pack: int = 1
    """Rows of a pack in the form ``samples``; the last ones of a window may have fewer."""
    balance: Literal["flops", "tokens", "none"] = "flops"
    """What packs are made even in: tokens, language cost and vision cost; tokens alone; or nothing: samples fill packs
    in the order's sequence, and packs keep it, for curricula (with ``shuffle: none``)."""
    cost_file: str = ""
    """What a token and a patch cost, fitted from measured step times by ``stoker fit-costs``; by default reckoned from
    the model's ``config.json``."""
    max_images: int = 0
    """Images and clips of one pack, at most; 0: no limit. A sample that has more alone is a bad sample (PACK_LIMIT)."""
    max_patches: int = 0
    """Patches of one pack, of images and clips, at most; 0: no limit. Bounds what the vision tower needs in memory."""
    align_samples_to: int = 1
    """Every sample is padded to a multiple of this many tokens: for context or sequence parallel trainers and FP8."""
    pad_to: int | Literal["none", "tokens_per_pack"] = "none"
    """A pack's length, or that of the rows of a padded form, is padded to a multiple of this, or always to
    `tokens_per_pack`."""
    vision_uniform: Literal["none", "image", "image+video"] = "none"
    """Gives every pack at least one image (and at least one clip), so that all ranks of a sharded trainer make the same
    vision calls: by placement, and by a marked dummy segment where there are too few."""

    def core_values(self) -> dict[str, Any]:
        """What the engine is told. For this package."""
        pad_to = {"none": 1, "tokens_per_pack": self.tokens_per_pack}.get(str(self.pad_to), self.pad_to)
        return {
            "tokens_per_pack": self.tokens_per_pack,
            "packs_per_step": self.packs_per_step,
            "form": self.form,
            "samples_per_pack": self.samples_per_pack,
            "balance": self.balance,
            "max_images": self.max_images,
            "max_patches": self.max_patches,
            "align_samples_to": self.align_samples_to,
            "pad_to": pad_to,
            "vision_uniform": self.vision_uniform,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What is trained."""

    train_on: Literal["assistant", "last_turn", "all"] = "assistant"
    """Every turn of `roles`; the last of them; or every token but the first and the vision tokens. A turn's own
    ``loss``, ``loss_scale`` or ``weight`` in the row comes before this."""
    roles: tuple[Literal["assistant", "user", "tool", "system", "developer"], ...] = ("assistant",)
    """Roles whose turns are trained."""
    end_of_turn: Literal["full", "token", "none"] = "full"
    """What is trained behind a turn's content: ``<|im_end|>`` and the line feed after it, as qwen-vl-finetune, ms-swift
    and LLaMA-Factory do; the token alone; or nothing."""
    weights: Literal["reject", "deliver"] = "reject"
    """What happens to a turn whose own weight is neither 0 nor 1: its row is a bad sample, or every batch has
    `loss_weights` beside its labels, and the trainer must apply them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """How media become pixels."""

    exif: Literal["auto", "apply", "ignore"] = "auto"
    """Whether EXIF orientation turns a picture, before any size is taken; auto, here and below: what `reference` does,
    and for ``stoker`` apply."""
    alpha: Literal["auto", "white", "white-rgba", "drop"] = "auto"
    """What lies under transparency: white, white but only for pictures that store colour with alpha, or the stored
    colour. For ``stoker`` white."""
    grey16: Literal["auto", "scale", "clip"] = "auto"
    """How 16-bit samples become 8-bit; for ``stoker`` scale."""
    sizes: Literal["trust", "ignore"] = "trust"
    """Whether ``width`` and ``height`` in rows (upright pixels) are believed, or every header is read."""
    changed: Literal["accept", "skip", "stop"] = "accept"
    """What happens to a picture whose object was replaced after its header was read, by one of the same size: it is
    used, it is a bad sample (MEDIA_CHANGED), or the run ends there. Another size is always a bad sample."""
    max_pixels: int = 178_956_970
    """A picture whose header announces more is a bad sample."""
    max_scans: int = 500
    """A progressive JPEG with more scans is a bad sample."""
    icc: Literal["ignore", "convert"] = "ignore"
    """Colour profiles are ignored, as reference processors do; converting is not built."""
    allow_missing_eoi: bool = False
    """Whether a JPEG that lacks nothing but its end marker is used; its pixels are the whole file's."""
    allow_truncated: bool = False
    """Whether a JPEG or PNG that ends early is used, with what is missing grey or black. Other formats never are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """Your own code, by import path (``package.module:function``); see `stoker.user_code` for its rules."""

    row: str = ""
    """``row(row: dict) -> dict``, before anything is read from a row."""
    picture: str = ""
    """``picture(pixels) -> pixels``, an upright picture, (height, width, 3) uint8."""
    version: str = ""
    """Yours to change whenever the code would give something else: it stands in every checkpoint's fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSamples:
    """What happens to samples that cannot be used."""

    policy: Literal["skip", "stop"] = "skip"
    max_fraction: float = 0.01
    """With ``skip``: the run ends when more than this share cannot be used."""
    ledger: str = ""
    """JSONL file to append to; by default ``ledger.jsonl`` in the index directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast; nothing here ever changes a batch. `auto` and limits are for the node, divided by the ranks on it."""

    cpu_threads: int | Literal["auto"] = "auto"
    """Threads that decode and tokenise; auto: the CPUs that the process may use."""
    fetch_threads: int = 1
    """Threads that drive the network."""
    fetch_concurrency: int | Literal["auto"] = "auto"
    """Objects in flight at one time; auto: 128 on the node at first, twice as many (at most 1,024) whenever that brings
    more bytes in the same time. Of a prefix that throttles, fewer for a while."""
    hedge_share: float = 0.02
    """Requests that are later than nearly all others are sent a second time, and the first answer counts: at most this
    share of extra requests. 0 turns it off."""
    prefetch_steps: int | Literal["auto"] = "auto"
    """Steps prepared ahead of the trainer; auto: 4, as far as the memory allows."""
    memory_limit: int | str = "4GiB"
    """Payload bytes alive in the engine, over all stages, the batches that the trainer holds included."""
    ranks_per_node: int | Literal["auto"] = "auto"
    """Loaders that share this node; auto: ``LOCAL_WORLD_SIZE``, else 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where S3 is and who we are to it. What is empty is looked up: in ``AWS_*``, then in the profile files.

    Single sign-on, roles and processes are botocore's to resolve: install ``stoker[aws]``.
    """

    endpoint_url: str = ""
    region: str = ""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """``endpoint/bucket/key`` or ``bucket.endpoint/key``; auto: path for an endpoint of one's own."""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    profile: str = ""
    anonymous: bool = False
    """Public buckets: nothing is signed."""
    requester_pays: bool = False
    """Buckets whose readers pay: you agree to."""
    ca_file: str = ""
    """PEM bundle; else ``AWS_CA_BUNDLE``, else the system's."""
    verify_tls: bool = True
    proxy: str = field(default="", repr=False)
    """``http://user:password@host:port``; else ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``, in both cases;
    ``none``: no proxy. Loopback addresses are always asked directly."""
    http2: bool = False
    """HTTP/2 where a store offers it over TLS. Off, because many connections reach many servers behind a name, and a
    lost packet holds up one request instead of all that share a connection. AWS S3 does not offer it."""
    connect_timeout_s: float = 10.0
    """For name, connection and TLS. This and the next three are for one try; see also `outage_limit_s`."""
    first_byte_timeout_s: float = 30.0
    """From the start of a request to the first byte of its answer."""
    stall_timeout_s: float = 30.0
    """Without a single byte of the body; an object that keeps coming is never given up."""
    object_timeout_s: float = 0.0
    """For a whole object; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Encoded media from S3 and HTTP, kept on a local disk for later epochs and restarts. Never changes a batch."""

    dir: str = ""
    """A folder on a local disk; empty: nothing is kept. All processes of a node that name it share it and its limit.

    Give each data set its own: what was kept for another one takes room until the folder is deleted.
    """
    limit: int | str = 0
    """Disk that it may take, such as ``200GiB``. Of a larger data set a fixed share is kept, and found in every epoch.
    """
    validate: Literal["always", "never"] = "always"
    """``always``: the store is asked each time whether a kept object is still the current one, which takes a request
    but no body. ``never``, for data that never change under their names: it is not asked at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run's data. The first group is part of every checkpoint's fingerprint; the second may change at any time."""

    # --- decides what comes out ---
    data: tuple[Data, ...]
    model: str
    """A checkpoint folder: processor configs, ``tokenizer.json``, chat template."""
    seed: int = 0
    shuffle: Literal["rows", "chunked", "none"] = "rows"
    """``rows``: every pass is another permutation of all rows, which takes one scan of each manifest, kept in the index
    directory. ``chunked``: starts without one; the chunks of all manifests are permuted, then the rows of a few chunks
    at a time (see `Chunks`). ``none``: rows in the order of the files."""
    chunks: Chunks = field(default_factory=Chunks)
    split: Split = field(default_factory=Split)
    epochs: int | None = None
    """Passes over the data; None goes on for ever. A finite loader gives every rank the same number of steps."""
    window_samples: int | Literal["auto"] = "auto"
    """Samples planned together, with ``shuffle: chunked`` about so many; auto: 1,024, and for steps of more than 64
    packs 64 for each pack: the few packs with a sample dearer than a mean pack meet only where a window is many steps.
    """
    pack: Pack = field(default_factory=Pack)
    labels: Labels = field(default_factory=Labels)
    reference: Literal["stoker", "hf-5.18-torchvision", "hf-5.18-pil", "hf-4.57", "qvu+hf"] = "stoker"
    """Whose output is reproduced. ``stoker`` has the numbers of transformers 5.18 and loses nothing that a row says;
    the others are strict: a setting that contradicts one is an error."""
    content_tokens: Literal["auto", "guard", "raw"] = "auto"
    """Whether turn, end-of-text and vision tokens that stand in a row's text are text (guard) or tokens; auto: guard
    for ``stoker``, raw for the strict references."""
    template: Literal["auto", "native", "jinja", "check"] = "auto"
    """Who renders the chat template: the engine where it knows it, else jinja2; one of them; or both, and a difference
    ends the run."""
    box_text: Literal["auto", "marks", "list"] = "auto"
    """How a row's boxes and names of objects stand in the text: between ``<|box_start|>`` and its like, or as
    ``[x1, y1, x2, y2]``; auto: as the model family was trained, marks for Qwen2-VL and list for the later ones."""
    media: Media = field(default_factory=Media)
    user_code: UserCode = field(default_factory=UserCode)

    # --- decides how fast, where, and what to do about trouble; never changes a batch ---
    bad_samples: BadSamples = field(default_factory=BadSamples)
    speed: Speed = field(default_factory=Speed)
    storage: Storage = field(default_factory=Storage)
    cache: Cache = field(default_factory=Cache)
    outage_limit_s: float = 600.0
    """How long storage may fail before the run ends with an error to resume from. See also `stall_limit_s`."""
    stall_warning_s: float = 60.0
    """A wait for one batch that lasts longer is logged, with rank, host, stage and the media waited for, and again
    whenever it has lasted twice as long; 0: never."""
    stall_limit_s: float = 570.0
    """A wait for one batch that lasts longer ends the run with DATA_STALL, to resume from; 0: never. Keep it
    below the time limit of the trainer's collectives (10 minutes for NCCL in torch), which names no cause."""
    index_dir: str = ""
    """Where row offsets and mirrored manifests are kept; by default ``~/.cache/stoker``. See also `exchange`."""

    exchange: Literal["auto", "dir", "tcp", "torch", "none"] = "auto"
    """How ranks share what they measure and compare their plans, so that each picture's header is read once per job.

    ``torch``: the store of the trainer's process group. ``tcp``: a small service in rank 0's process, at
    ``MASTER_ADDR``. ``dir``: files in `index_dir`, which all ranks must see. ``none``: not at all, for rows that all
    say their pictures' sizes. auto: ``torch`` if a process group is initialised when the loader is made, else ``tcp``
    under a launcher that sets ``MASTER_ADDR`` and ``RANK``, else ``dir``."""
    exchange_port: int = 0
    """``exchange: tcp``: the port of rank 0's service; 0: one of 16 from 20000 to 31999 that follow from the job."""

    ray: RaySettings | None = None
    """Batches come from a Ray cluster; see `RaySettings`. ``ray: auto``: from the one that this node belongs to."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a YAML file. Relative paths in it are taken from its folder.

        Raises:
            InvalidArgumentError: For a key that does not exist (the nearest one is named) or a value that does not fit.
        """
        import yaml

        file = Path(path)
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidArgumentError(f"{file}: {error}", "SETTINGS") from error
        if not isinstance(content, Mapping):
            raise InvalidArgumentError(f"{file}: expected settings as `key: value` lines", "SETTINGS")
        try:
            return cls.from_dict(content, base=file.resolve().parent)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{file}: {error.message}", error.code) from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, base: str | os.PathLike[str] | None = None) -> Self:
        """Makes settings from plain values, the same keys as in a YAML file.

        Args:
            values: Nested mappings.
            base: Folder that relative paths are taken from; the current one by default.

        Raises:
            InvalidArgumentError: As `load`.
        """
        if isinstance(values, Mapping) and isinstance(address := values.get("ray"), str):
            values = {**values, "ray": {"address": address}}
        made: Self = build(cls, values)
        return made._absolute(Path(base) if base is not None else Path.cwd())._checked()

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys changed; a mapping changes the keys it names: ``replace(speed={"cpu_threads": 1})``."""
        values = self.to_dict(hide_secrets=False)
        for key, change in changes.items():
            old = values.get(key)
            values[key] = {**old, **change} if isinstance(old, dict) and isinstance(change, Mapping) else change
        return type(self).from_dict(values)

    def to_dict(self, *, hide_secrets: bool = False) -> dict[str, Any]:
        """Plain values that `from_dict` takes. With `hide_secrets` credentials are left out."""
        values = dataclasses.asdict(self)
        values["data"] = [dict(d) for d in values["data"]]
        if hide_secrets:
            for name in SECRET:
                values["storage"].pop(name)
            if values["ray"] is not None:
                values["ray"].pop("runtime_env")  # may hold variables of the environment
        return values

    def resolved_profile(self) -> dict[str, Any]:
        """The facts of `reference`, with what the settings change of them; ``auto`` is worked out.

        Raises:
            InvalidArgumentError: If a setting contradicts a strict reference.
        """
        from stoker import _core

        return _core.resolve_profile(
            self.reference, self.media.exif, self.media.alpha, self.media.grey16, self.content_tokens
        )

    def resolved_window_samples(self) -> int:
        """`window_samples` with ``auto`` worked out."""
        if self.window_samples != "auto":
            return self.window_samples
        packs = self.pack.packs_per_step
        return 1024 if packs <= 64 else min(64 * packs, 2**22)

    def resolved_index_dir(self) -> Path:
        """The index directory in use."""
        if self.index_dir:
            return Path(self.index_dir)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker"

    def _absolute(self, base: Path) -> Self:
        def local(path: str) -> str:
            return path if not path or "://" in path else str(base / Path(path).expanduser())

        data = tuple(
            dataclasses.replace(d, manifest=local(d.manifest), media_root=local(d.media_root)) for d in self.data
        )
        bad = dataclasses.replace(self.bad_samples, ledger=local(self.bad_samples.ledger))
        cache = dataclasses.replace(self.cache, dir=local(self.cache.dir))
        pack = dataclasses.replace(self.pack, cost_file=local(self.pack.cost_file))
        index_dir = local(self.index_dir)
        return dataclasses.replace(
            self, data=data, model=local(self.model), pack=pack, bad_samples=bad, cache=cache, index_dir=index_dir
        )

    def _check_pack(self) -> None:
        pack = self.pack
        _require(
            pack.form == "samples" or pack.samples_per_pack == 1,
            f"pack.samples_per_pack belongs to pack.form: samples; the form is {pack.form}",
        )
        for name in ("samples_per_pack", "max_images", "max_patches"):
            least = 1 if name == "samples_per_pack" else 0
            _require(least <= getattr(pack, name) < 2**31, f"pack.{name} must be from {least} to 2**31 - 1")
        _require(
            pack.cost_file == "" or pack.balance == "flops",
            "pack.cost_file belongs to pack.balance: flops; leave one out",
        )
        _require(
            isinstance(pack.pad_to, str) or pack.pad_to >= 1, "pack.pad_to must be positive, none or tokens_per_pack"
        )
        from stoker import _core

        _core.LoaderSettings().set_pack(pack.core_values())  # what does not go together is said there

    def _checked(self) -> Self:
        _require(len(self.data) > 0, "data: name at least one manifest")
        for source in self.data:
            _require(
                0 < parse_bytes(source.max_row_bytes) < 2**32, "data.max_row_bytes must be from 1 byte to 4 GiB - 1"
            )
            given = [name for name in ("weight", "repeat", "samples") if getattr(source, name) is not None]
            _require(len(given) < 2, f"data: {' and '.join(given)} of one entry: give one of them")
            number = source.weight if source.weight is not None else source.repeat
            _require(
                (number is None or 1e-6 <= number <= 1e12) and 0 < (source.samples or 1) < 2**62,
                "data: weight and repeat must be from 1e-6 to 1e12, samples positive",
            )
        with_weight = [source.weight is not None for source in self.data]
        _require(all(with_weight) or not any(with_weight), "data: give all entries a weight or none")
        with_share = [s for s in self.data if s.share() != ("once", 1)]
        _require(
            self.shuffle != "chunked" or not with_share,
            "shuffle: chunked takes every row once an epoch: weight, repeat and samples need the number of rows, which "
            "nobody counts. Use shuffle: rows with them",
        )
        _require(1024 <= parse_bytes(self.chunks.size) < 2**40, "chunks.size must be from 1 KiB to 1 TiB - 1")
        _require(1 <= self.chunks.per_group <= 4096, "chunks.per_group must be from 1 to 4096")
        split = self.split
        _require(
            split.held_out == 0 or 1 <= split.millionths() < 10**6,
            "split.held_out must be a share of the rows, from 1e-6 to 0.999999, or 0 for no split",
        )
        _require(
            split.held_out != 0 or split.use == "train", "split.use: held_out needs split.held_out, the share held out"
        )
        _require(16 <= self.pack.tokens_per_pack < 2**24, "pack.tokens_per_pack must be from 16 to 2**24 - 1")
        _require(1 <= self.pack.packs_per_step < 2**20, "pack.packs_per_step must be from 1 to 2**20 - 1")
        self._check_pack()
        _require(len(self.labels.roles) > 0, "labels.roles: name at least one role")
        _require(
            self.labels.train_on != "all" or self.labels.roles == ("assistant",),
            "labels.train_on: all trains every role, so labels.roles has nothing to choose: leave it out",
        )
        _require(self.epochs is None or 1 <= self.epochs < 2**31, "epochs must be from 1 to 2**31 - 1, or left out")
        _require(1 <= self.resolved_window_samples() <= 2**22, "window_samples must be from 1 to 2**22")
        _require(0 <= self.seed < 2**64, "seed must be from 0 to 2**64 - 1")
        _require(0.0 <= self.bad_samples.max_fraction <= 1.0, "bad_samples.max_fraction must be from 0 to 1")
        code = self.user_code
        _require(
            bool(code.version) or not (code.row or code.picture),
            "user_code.version: give your code a version, and change it whenever the code would give something else",
        )
        _require(self.media.max_pixels >= 1, "media.max_pixels must be at least 1")
        _require(self.media.max_scans >= 1, "media.max_scans must be at least 1")
        _require(
            self.media.icc == "ignore",
            "media.icc: convert is not built: colours are used as stored, as reference processors do. Convert such "
            "pictures beforehand, or set media.icc: ignore",
        )
        self.resolved_profile()
        _require(self.outage_limit_s >= 0.0, "outage_limit_s must be 0 or more")
        for name in ("stall_warning_s", "stall_limit_s"):
            _require(0.0 <= getattr(self, name) <= 1e9, f"{name} must be from 0 to 1e9")
        _require(0 <= self.exchange_port < 2**16, "exchange_port must be from 0 to 65535")
        for name, least, most in _SPEED_LIMITS:
            value = getattr(self.speed, name)
            _require(value == "auto" or least <= value <= most, f"speed.{name} must be from {least} to {most}")
        _require(0 <= self.speed.hedge_share <= 0.5, "speed.hedge_share must be from 0 to 0.5")
        for name in ("connect_timeout_s", "first_byte_timeout_s", "stall_timeout_s"):
            _require(0 < getattr(self.storage, name) <= 86400, f"storage.{name} must be above 0 and at most 86400")
        _require(0 <= self.storage.object_timeout_s <= 86400, "storage.object_timeout_s must be from 0 to 86400")
        _require(0 < parse_bytes(self.speed.memory_limit) < 2**48, "speed.memory_limit must be from 1 byte to 256 TiB")
        if self.ray is not None:
            self.ray.check()
        _require("://" not in self.cache.dir, "cache.dir must be a folder on a local disk")
        least = 1 if self.cache.dir else 0
        _require(
            least <= parse_bytes(self.cache.limit) < 2**60,
            "cache.limit must be the disk that the cache may take, such as 200GiB",
        )
        return self


_SPEED_LIMITS = (
    ("cpu_threads", 1, 1024),
    ("fetch_threads", 1, 64),
    ("fetch_concurrency", 1, 16384),
    ("prefetch_steps", 0, 1024),
    ("ranks_per_node", 1, 4096),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSpeed:
    """`Speed` with its `auto` values worked out for one rank."""

    cpu_threads: int
    fetch_threads: int
    fetch_concurrency: int
    max_fetch_concurrency: int
    hedge_share: float
    prefetch_steps: int
    memory_limit_bytes: int


def resolve_speed(speed: Speed, *, usable_cpus: int, peers: int = 1) -> ResolvedSpeed:
    """Divides what belongs to the node by the ranks on it; one that prepares for `peers` of them has their shares."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    on_node = int(said) if said.isdecimal() and int(said) > 0 else 1
    ranks = on_node if speed.ranks_per_node == "auto" else speed.ranks_per_node
    ranks = max(1, math.ceil(ranks / peers))  # that prepare
    in_flight, in_flight_at_most = (
        (max(8, 128 // ranks), max(32, 1024 // ranks))
        if speed.fetch_concurrency == "auto"
        else (speed.fetch_concurrency, speed.fetch_concurrency)
    )
    return ResolvedSpeed(
        cpu_threads=math.ceil(usable_cpus / ranks) if speed.cpu_threads == "auto" else speed.cpu_threads,
        fetch_threads=speed.fetch_threads,
        fetch_concurrency=in_flight,
        max_fetch_concurrency=in_flight_at_most,
        hedge_share=speed.hedge_share,
        prefetch_steps=4 if speed.prefetch_steps == "auto" else speed.prefetch_steps,
        memory_limit_bytes=parse_bytes(speed.memory_limit) // ranks,
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgumentError(message, "SETTINGS")
