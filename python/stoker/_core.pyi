from collections.abc import Callable, Mapping, Sequence
import os
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def reasons() -> list[tuple[str, str, str]]:
    """
    Every code that an error or a ledger line can carry: [(name, action, sentence)].
    """

def set_leak_warnings(is_on: bool) -> None:
    """
    Whether objects of this module that outlive the interpreter are reported on stderr.
    """

class Tokenizer:
    """The byte-level BPE tokenizer of a tokenizer.json."""

    def __init__(self, path: str | os.PathLike) -> None: ...

    def encode(self, text: str, literal: Sequence[tuple[int, int]] = []) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """
        Ids of a text as int32. `literal`: byte ranges of its UTF-8 in which control tokens are ordinary text.
        """

    def encode_many(self, texts: Sequence[str]) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """Ids of all texts, one after another, made in one go on one thread."""

    def counts(self, text: bytes, literal: Sequence[tuple[int, int]] = []) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], int, int]:
        """
        (ids of any bytes, ill-formed sequences replaced, control tokens that stayed text).
        """

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes that these ids stand for."""

    def token_id(self, token: str) -> int | None:
        """Id of an added token or of the entry with these bytes, or None."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file."""

class RenderedTurn:
    """One chunk of a rendered conversation, from its <|im_start|> on."""

    @property
    def text(self) -> str: ...

    @property
    def content(self) -> list[tuple[int, int]]: ...

    @property
    def media(self) -> list[int]: ...

    @property
    def is_assistant(self) -> bool: ...

    @property
    def role(self) -> str | None: ...

    @property
    def turn(self) -> int: ...

def render_row(model: str | os.PathLike, row: bytes, *, engine: str, make_renderer: Callable, add_generation_prompt: bool = False, add_vision_id: bool = False) -> tuple[list[RenderedTurn], str]:
    """
    (chunks, what the template leaves out or "") of a JSONL row, rendered with a checkpoint folder's or a file's template.
    """

def render_chat(model: str | os.PathLike, turns: Sequence[tuple[str, bool, Sequence[tuple[str, str]], Sequence[tuple[str, str]]]], tools: Sequence[str], *, add_generation_prompt: bool = False, add_vision_id: bool = False) -> list[RenderedTurn]:
    """
    Renders a conversation given as (role, has_content, parts, tool calls) tuples with a checkpoint folder's template.
    """

def probe_image(prefix: bytes, total_bytes: int = 0, *, max_pixels: int = 178956970) -> dict:
    """
    What a picture's first bytes say, as a dict; or {'need': (begin, end)}, the bytes that are missing. With both, only an orientation behind the pixels is open: give those bytes to finish_probe.
    """

def finish_probe(prefix: bytes, total_bytes: int, piece: bytes) -> dict:
    """probe_image with the further bytes that it asked for."""

def decode_image(data: bytes, *, exif: bool = True, alpha: str = 'white', grey16: str = 'scale', max_pixels: int = 178956970, max_scans: int = 500, allow_missing_eoi: bool = False, allow_truncated: bool = False) -> NDArray[numpy.uint8]:
    """Decodes a picture to a (height, width, 3) uint8 array."""

def image_notes(data: bytes, *, allow_missing_eoi: bool = False, allow_truncated: bool = False) -> list:
    """
    Decodes a picture and says what was odd about it: names as in a loader's report.
    """

def resize(pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, 3), order='C', device='cpu', writable=False)], size: tuple[int, int], *, resizer: str = 'aten') -> NDArray[numpy.uint8]:
    """
    Bicubic resize of a (height, width, 3) uint8 array to (height, width): 'aten' (torchvision backend), 'pillow13', 'pillow12.2', 'pillow' (before 12.2) or 'float'.
    """

@overload
def image_patches(data: bytes, target: tuple[int, int], patch: int = 16, merge: int = 2, *, exif: bool = True, alpha: str = 'white', grey16: str = 'scale', resizer: str = 'aten', max_pixels: int = 178956970, max_scans: int = 500) -> NDArray[numpy.uint8]:
    """
    An encoded picture as (n_patches, 3, patch, patch) uint8 patches of the upright target size (height, width).
    """

@overload
def image_patches(pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, 3), order='C', device='cpu', writable=False)], target: tuple[int, int], patch: int = 16, merge: int = 2, *, resizer: str = 'aten') -> NDArray[numpy.uint8]: ...

def fetch(url: str, *, offset: int = 0, length: int | None = None, if_match: str = '', storage: dict = {}, outage_limit_s: float = 600.0, environ: Mapping[str, str] | None = None) -> tuple:
    """
    Reads one object or a part of it: (bytes, bytes in all, tag). `storage` holds settings by name; `environ` replaces the process's environment.
    """

def fetch_all(urls: Sequence[str], *, concurrency: int = 64, storage: dict = {}, outage_limit_s: float = 600.0, environ: Mapping[str, str] | None = None) -> list:
    """
    Reads whole objects, many at a time: their bytes, in the order of `urls`. The first error is raised.
    """

def download(url: str, path: str, *, storage: dict = {}, outage_limit_s: float = 600.0) -> None:
    """
    Mirrors one object into a local file, which appears only when it is complete.
    """

def resolve_media(reference: str, media_root: str) -> str:
    """What a row's media reference means: an absolute path or a URL."""

def sign_s3(*, host: str, path: str, query: Sequence[tuple[str, str]] = [], headers: Sequence[tuple[str, str]] = [], access_key_id: str, secret_access_key: str, session_token: str = '', region: str, unix_time: int) -> tuple[str, list[tuple[str, str]]]:
    """Signs a GET: (encoded path and query, headers to send beside Host)."""

def prepare_s3(url: str, *, storage: dict = {}, environ: Mapping[str, str] = {}) -> tuple[str, list[str]]:
    """How an s3:// object would be asked for: (URL, header lines)."""

def parse_s3_error(body: bytes) -> dict[str, str]:
    """The fields of an S3 error body."""

def parse_row(line: bytes, *, nonfinite_is_null: bool = False, shape: str = 'auto', columns: Mapping[str, str] = {}, roles: Mapping[str, str] = {}) -> dict:
    """One JSONL line as the engine reads it."""

def json_text(text: bytes) -> str:
    """
    JSON written anew as Python's json.dumps(ensure_ascii=False) writes it.
    """

class Manifest:
    @staticmethod
    def open(path: str, *, index_dir: str = '', max_row_bytes: int = 268435456, trust_stat: bool = True, counts_rows: bool = True, held_out_millionths: int = 0, split_key: str = '') -> Manifest: ...

    @property
    def n_rows(self) -> int: ...

    @property
    def about_n_rows(self) -> int: ...

    def rows_of_side(self, held_out: bool) -> list[int]:
        """The rows on a side of the split."""

    def find_rows(self, begin: int, end: int, *, held_out: bool = False) -> list[int]:
        """
        Offsets of the rows that begin there, of one side of the split, where rows are not counted.
        """

    @property
    def size_bytes(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def was_scanned(self) -> bool: ...

    @property
    def form(self) -> str: ...

    def row(self, row: int) -> tuple:
        """(offset, bytes with line end, line from 1)."""

    def read(self, row: int) -> bytes: ...

    def describe(self, row: int) -> str: ...

    def check_unchanged(self) -> None: ...

class Order:
    @staticmethod
    def make(sources: Sequence[tuple[str, int]], *, seed: int, shuffle: bool = True, epochs: int | None = None, mixture: Sequence[tuple[int, int]] = []) -> Order:
        """
        sources: [(fingerprint, rows)]. mixture: [(sources, samples in an epoch)].
        """

    def at(self, position: int) -> tuple:
        """(pass, source, row)."""

    @property
    def size(self) -> int | None: ...

    @property
    def rows_per_pass(self) -> int: ...

class ChunkOrder:
    @staticmethod
    def make(sources: Sequence[tuple[str, int, int]], *, seed: int, chunk_bytes: int, chunks_per_group: int, window_samples: int, epochs: int | None = None) -> ChunkOrder:
        """sources: [(fingerprint, bytes, about how many rows)]."""

    @property
    def n_windows(self) -> int: ...

    @property
    def windows_per_pass(self) -> int: ...

    def chunks_of(self, window: int) -> list[tuple[int, int, int]]:
        """
        [(source, begin, end)] of the window's group, in the order in which rows are counted.
        """

    def rows_of(self, window: int, n_rows: int) -> list[int]:
        """The window's rows among the n_rows of its group."""

class WindowPlan:
    @property
    def window(self) -> int: ...

    @property
    def n_samples(self) -> int: ...

    @property
    def n_usable(self) -> int: ...

    def digest(self) -> str: ...

    @property
    def packs(self) -> list:
        """Members of each pack: indices into the window's samples."""

    @property
    def sums(self) -> list:
        """The sums of each pack, by the names of PackPlan."""

def plan_window(window: int, samples: Annotated[NDArray[numpy.int64], dict(shape=(None, 8), order='C', device='cpu', writable=False)], settings: dict) -> WindowPlan:
    """
    samples: int64 (n, 8): order_index, tokens (0: unusable), target_tokens, patches, images, videos, cost_language, cost_vision. settings: by the names of settings.Pack.core_values.
    """

def assign_step(costs: Sequence[tuple[int, int]], *, dp_size: int) -> list[tuple[int, int]]:
    """
    costs: (language, vision) of each pack. Returns (rank, micro_batch) of each.
    """

class StepPlanner:
    def __init__(self, *, packs_per_step: int, rows_per_pass: int, state: dict | None = None) -> None: ...

    @property
    def next_window(self) -> int: ...

    def add(self, arg: WindowPlan, /) -> None: ...

    def finish(self) -> None: ...

    def next(self, *, dp_size: int) -> dict | None:
        """The next step, or None."""

def check_data_size(*, rows_per_pass: int, packs_per_step: int, is_finite: bool) -> None: ...

def cost_of(tokens: int, patches_per_image: Sequence[int]) -> tuple[int, int]:
    """(language, vision) in thousands of FLOPs, for Qwen3-VL-8B."""

def resolve_profile(reference: str, exif: str = 'auto', alpha: str = 'auto', grey16: str = 'auto', content_tokens: str = 'auto') -> dict:
    """
    Facts of the profile that a run follows; InvalidArgumentError for a value that contradicts a strict one.
    """

def profile_names() -> list[str]:
    """All that `reference` takes, the default first."""

def smart_resize(height: int, width: int, factor: int, min_pixels: float, max_pixels: float, is_qwen_vl_utils: bool = False) -> tuple[int, int]:
    """
    (height, width) that an upright image is resized to; BadSampleError IMG_ASPECT beyond 200 to 1.
    """

def clip_size(family: str, reference: str, n_frames: int, height: int, width: int, min_pixels: int, max_pixels: int, is_capped: bool = False) -> tuple[int, int]:
    """
    (height, width) of a clip's frames; BadSampleError CLIP_FRAMES, IMG_ASPECT or IMG_SIZE where there is none.
    """

def qwen_vl_utils_clip_size(n_frames: int, height: int, width: int, factor: int) -> tuple[int, int, int, int]:
    """
    Sizes of a listed clip's frames after the first and the second resize of qwen-vl-utils.
    """

def sample_frames(family: str, is_qwen_vl_utils: bool, n_source: int, source_fps: float, fps: float = 2.0, n_frames: int = 0, min_frames: int = 4, max_frames: int = 768) -> list[int]:
    """Numbers of the frames that the reference takes; source_fps 0: unknown."""

def clip_timestamps(frames: Sequence[int], fps: float, temporal_patch: int = 2) -> list[str]:
    """What stands before each temporal patch of a Qwen3-VL clip."""

def seconds_per_grid(frames: Sequence[int], fps: float, total_frames: float, temporal_patch: int = 2) -> float:
    """Seconds between temporal patches, for the positions of Qwen2.5-VL."""

def media_positions(family: str, reference: str, ids: Sequence[int], image_grids: Sequence[tuple[int, int, int]], video_grids: Sequence[tuple[int, int, int]], seconds_per_grid: Sequence[float], tokens_per_second: float, image_pad: int, video_pad: int, merge: int) -> list[list[int]]:
    """
    Position rows text, t, h, w of a sample: `ids` before expansion, grids (t, h, w) in patches of each pad.
    """

def encode_rows(model: str, rows: Sequence[bytes], *, reference: str = 'hf-5.18-torchvision', train_on: str = 'assistant', roles: Sequence[str] = ['assistant'], end_of_turn: str = 'full', engine: str = 'auto', make_renderer: Callable | None = None) -> list[tuple[list[int], list[int], str, str]]:
    """
    (ids, trained, code, message) of each JSONL line before its placeholders are expanded; the code is empty for a row that can be used.
    """

class LoaderState:
    def __init__(self) -> None: ...

    @property
    def version(self) -> int: ...

    @version.setter
    def version(self, arg: int, /) -> None: ...

    @property
    def fingerprint(self) -> str: ...

    @fingerprint.setter
    def fingerprint(self, arg: str, /) -> None: ...

    @property
    def dp_size(self) -> int: ...

    @dp_size.setter
    def dp_size(self, arg: int, /) -> None: ...

    @property
    def step(self) -> int: ...

    @step.setter
    def step(self, arg: int, /) -> None: ...

    @property
    def window(self) -> int: ...

    @window.setter
    def window(self, arg: int, /) -> None: ...

    @property
    def packs_delivered(self) -> int: ...

    @packs_delivered.setter
    def packs_delivered(self, arg: int, /) -> None: ...

    @property
    def window_digest(self) -> str: ...

    @window_digest.setter
    def window_digest(self, arg: str, /) -> None: ...

class CoreHandOver:
    """
    What passes between a loader and the client that brings its batches from elsewhere. Any thread may call; none blocks longer than its timeout, and after the loader's close() none does.
    """

    @staticmethod
    def create() -> CoreHandOver: ...

    def say(self, line: str) -> None:
        """What is being done, or why nothing comes; empty: nothing to say."""

    def welcome(self, message: bytes) -> None:
        """The run is open; what a coordinator's welcome() gave."""

    def fail(self, code: str, message: str) -> None:
        """
        The run ends now, also for packs that were not taken; the first call counts.
        """

    def start_within(self, ms: int) -> LoaderState | None:
        """
        Where the run starts, once the trainer has asked for its first batch, or None.
        """

    def wanted_within(self, beyond_step: int, ms: int) -> int | None:
        """The step that the trainer wants, once it is beyond that one, or None."""

    def put(self, delivery: bytes, pixels: object, tail: object) -> None:
        """
        The next pack: what a coordinator's deliver() gave, and a pack worker's two contiguous buffers. The pixels are not copied, and their owner is kept until the last array of them is gone. STOPPED once nothing is taken any more; PEER_MISMATCH for what is not whole or out of turn, and then nothing is put.
        """

    def end(self, message: bytes) -> None:
        """Nothing comes after what was put; what a coordinator's end() gave."""

    @property
    def is_closed(self) -> bool:
        """The loader takes nothing any more."""

    @property
    def held_bytes(self) -> int:
        """Of packs that were put and whose arrays are not all gone."""

    @property
    def n_unread(self) -> int:
        """Packs that the trainer has not taken."""

    @property
    def waited_s(self) -> float:
        """
        For how long the trainer has waited for packs in all, a wait that goes on included.
        """

class LoaderSettings:
    def __init__(self) -> None: ...

    def add_data(self, *, manifest: str, media_root: str = '', shape: str = 'auto', columns: Mapping[str, str] = {}, roles: Mapping[str, str] = {}, nonfinite_is_null: bool = False, max_row_bytes: int = 268435456, share: str = 'once', share_value: int = 1) -> None: ...

    @property
    def dp_rank(self) -> int: ...

    @dp_rank.setter
    def dp_rank(self, arg: int, /) -> None: ...

    @property
    def dp_size(self) -> int: ...

    @dp_size.setter
    def dp_size(self, arg: int, /) -> None: ...

    def set_peers(self, *, rank: int, count: int, job: str) -> None:
        """The processes of this node that get the same batches."""

    @property
    def index_dir(self) -> str: ...

    @index_dir.setter
    def index_dir(self, arg: str, /) -> None: ...

    @property
    def outage_limit_s(self) -> float: ...

    @outage_limit_s.setter
    def outage_limit_s(self, arg: float, /) -> None: ...

    @property
    def stall_warning_s(self) -> float: ...

    @stall_warning_s.setter
    def stall_warning_s(self, arg: float, /) -> None: ...

    @property
    def stall_limit_s(self) -> float: ...

    @stall_limit_s.setter
    def stall_limit_s(self, arg: float, /) -> None: ...

    def set_hand_over(self, hand_over: CoreHandOver) -> None:
        """
        Batches are put in from outside; nothing is opened, fetched or prepared here.
        """

    def set_exchange(self, *, kind: str, job: str = '', host: str = '', port: int = 0, is_host: bool = False, secret: str = '', store: object | None = None) -> None:
        """How ranks tell each other what they measured; see stoker.exchange."""

    def set_output(self, *, model: str, seed: int, is_shuffled: bool, epochs: int | None, window_samples: int, reference: str, exif: str, alpha: str, grey16: str, content_tokens: str, trusts_row_sizes: bool, changed_media: str, max_pixels: int, max_scans: int, allow_missing_eoi: bool = False, allow_truncated: bool = False) -> None: ...

    def set_pack(self, values: dict, *, cost: Sequence[int] | None = None) -> None:
        """
        values: by the names of settings.Pack.core_values. cost: (language per token, per token^2, vision per patch, per patch^2), or None to take the model's.
        """

    def set_chunked(self, *, chunk_bytes: int, chunks_per_group: int) -> None: ...

    def set_split(self, *, key: str, held_out_millionths: int, uses_held_out: bool) -> None: ...

    def set_text(self, *, train_on: str, roles: Sequence[str], end_of_turn: str, weights: str, box_text: str, template_engine: str, truncates_turns: bool, make_renderer: Callable) -> None:
        """
        What is trained, and who renders chat templates: `make_renderer(text, folder)` is called for those that the engine does not know.
        """

    def set_speed(self, *, cpu_threads: int, fetch_threads: int, fetch_concurrency: int, max_fetch_concurrency: int, hedge_share: float, prefetch_steps: int, memory_limit_bytes: int) -> None: ...

    def set_bad_samples(self, *, is_stop: bool, max_fraction: float, ledger: str) -> None: ...

    def set_cache(self, *, dir: str, limit_bytes: int, is_validated: bool) -> None: ...

    def set_user_code(self, *, identity: str, row: object | None, size: object | None, picture: object | None) -> None: ...

    def set_storage(self, *, endpoint: str, region: str, addressing: str, access_key_id: str, secret_access_key: str, session_token: str, profile: str, anonymous: bool, requester_pays: bool, ca_file: str, verify_tls: bool, proxy: str, http2: bool, key_source: Callable | None = None) -> None:
        """
        `key_source(afresh, is_stopped)` finds keys that the engine does not look up itself; see stoker.credentials.
        """

    def set_timeouts(self, *, connect_s: float, first_byte_s: float, stall_s: float, object_s: float) -> None:
        """
        How long one try may take to connect, to the first byte, without a byte, in all (0: as long as it comes).
        """

class BatchCounts:
    @property
    def tokens(self) -> int: ...

    @property
    def pad_tokens(self) -> int: ...

    @property
    def target_tokens(self) -> int: ...

    @property
    def step_target_tokens(self) -> int: ...

    @property
    def is_step_target_upper_bound(self) -> bool: ...

    @property
    def patches(self) -> int: ...

    @property
    def video_patches(self) -> int: ...

    @property
    def cost(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def micro_batch(self) -> int: ...

    @property
    def micro_batches_in_step(self) -> int: ...

class CoreBatch:
    @property
    def counts(self) -> BatchCounts: ...

    @property
    def max_seqlen(self) -> int: ...

    @property
    def n_samples(self) -> int: ...

    @property
    def n_images(self) -> int: ...

    @property
    def n_clips(self) -> int: ...

    @property
    def has_loss_weights(self) -> bool: ...

    @property
    def n_patches(self) -> int: ...

    @property
    def tail_tokens(self) -> int: ...

    @property
    def merge(self) -> int: ...

    @property
    def image_token_id(self) -> int: ...

    @property
    def video_token_id(self) -> int: ...

    @property
    def pad_token_id(self) -> int: ...

    def array(self, name: str) -> Annotated[NDArray, dict(device='cpu')]:
        """A DLPack view of one array; it keeps the pack's memory alive."""

    def digest(self) -> str: ...

def usable_cpus() -> int:
    """CPUs that this process may use: affinity and cgroup quota."""

def drain_log() -> list[tuple[int, str]]:
    """
    Log lines of the engine since the last call: [(level 0 debug .. 3 error, text)].
    """

class CoreLoader:
    @staticmethod
    def create(settings: LoaderSettings) -> CoreLoader: ...

    def open_within(self, arg: int, /) -> bool: ...

    def progress(self) -> str: ...

    def next_within(self, arg: int, /) -> CoreBatch | None:
        """
        The next batch, or None if none came in time; the Python side loops, so that Ctrl-C is heard.
        """

    @property
    def is_at_end(self) -> bool: ...

    @property
    def has_started(self) -> bool: ...

    def state(self) -> tuple[LoaderState, bool]: ...

    def state_after(self, arg: int, /) -> LoaderState: ...

    def load_state(self, state: LoaderState, accepted: Sequence[str]) -> None: ...

    def describe(self, arg: int, /) -> tuple[int, str, int, int, list[str]]: ...

    def add_wait(self, arg: float, /) -> None: ...

    def report(self) -> dict: ...

    def normalisation(self) -> tuple[list[float], list[float], float, int, int, int, bool]:
        """
        (mean, std, rescale, patch, merge, temporal_patch, is_pil_backend) of the model's image processor.
        """

    def clip_normalisation(self) -> tuple[list[float], list[float], float]:
        """(mean, std, rescale) of the model's video processor."""

    def close(self) -> None: ...

class CoreInspector:
    @staticmethod
    def create(settings: LoaderSettings) -> CoreInspector: ...

    def prepare(self, line: bytes, media_root: str, with_pixels: bool = True, source: int | None = None) -> dict:
        """
        `source`: the manifest that the row comes from, which says how it is read; otherwise as the first one says.
        """

    def parse(self, line: bytes, source: int) -> dict:
        """A row as prepare() reads it, after the user's own code."""

    def fetch(self, url: str) -> bytes: ...

    def open_dataset(self) -> None: ...

    @property
    def n_sources(self) -> int: ...

    def name(self, arg: int, /) -> str: ...

    def n_rows(self, arg: int, /) -> int: ...

    def read(self, source: int, row: int) -> bytes: ...

    def location(self, source: int, row: int) -> tuple:
        """(manifest, line, byte offset, bytes, media root)."""

    def row_at_line(self, source: int, line: int) -> int | None: ...

    def row_with_id(self, source: int, id: str) -> int | None: ...

    @property
    def merge(self) -> int: ...

    @property
    def clip_normalisation(self) -> tuple[list[float], list[float], float]: ...

    @property
    def normalisation(self) -> tuple[list[float], list[float], float, int, int, int, bool]: ...

class CoreChecker:
    @staticmethod
    def create(settings: LoaderSettings, n_media_rows: int | None, ledger: str, n_examples: int) -> CoreChecker: ...

    def wait_within(self, arg: int, /) -> bool: ...

    def progress(self) -> str: ...

    def report(self) -> dict: ...

    def stop(self) -> None: ...

class CoreProber:
    @staticmethod
    def create(settings: LoaderSettings, urls: Sequence[str], max_concurrency: int) -> CoreProber: ...

    def open_within(self, milliseconds: int) -> bool: ...

    def objects(self) -> dict: ...

    def storage(self) -> str: ...

    def progress(self) -> str: ...

    def begin_phase(self, concurrency: int, lasts_s: float, patience_s: float) -> None: ...

    def phase_within(self, milliseconds: int) -> dict | None:
        """What the phase measured, or None if it has not ended in that time."""

    def end_phase(self) -> dict:
        """Ends the phase at once: what it measured so far."""

    def stop(self) -> None: ...

class CoreForecaster:
    @staticmethod
    def create(settings: LoaderSettings, *, dp_sizes: Sequence[int], n_steps: int | None, n_epochs: int | None, reads_headers: bool, compares: bool, n_longest: int) -> CoreForecaster: ...

    def wait_within(self, milliseconds: int) -> bool: ...

    def progress(self) -> str: ...

    def report(self) -> dict: ...

    def stop(self) -> None: ...

class CoreIndexer:
    @staticmethod
    def create(settings: LoaderSettings, *, reads_headers: bool, ledger: str, n_examples: int, pack_lengths: Sequence[int]) -> CoreIndexer: ...

    def wait_within(self, milliseconds: int) -> bool: ...

    def progress(self) -> str: ...

    def report(self) -> dict: ...

    def stop(self) -> None: ...

class TaskInfo:
    """A pack that a worker is to make."""

    @property
    def sequence(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def micro_batch(self) -> int: ...

    @property
    def micro_batches_in_step(self) -> int: ...

    @property
    def is_last_of_step(self) -> bool: ...

    @property
    def n_bytes(self) -> int: ...

    @property
    def n_samples(self) -> int: ...

    @property
    def cost(self) -> int: ...

    @property
    def message(self) -> bytes: ...

class CoreCoordinator:
    """Plans for all ranks of a run and keeps its books."""

    @staticmethod
    def create(settings: LoaderSettings) -> CoreCoordinator:
        """Begins to open model and manifests on a thread."""

    def open_within(self, milliseconds: int) -> bool: ...

    def progress(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def report(self) -> dict: ...

    def close(self) -> None: ...

    def welcome(self) -> bytes: ...

    def start(self, state: LoaderState, accepted: Sequence[str]) -> None: ...

    def want_step(self, step: int) -> None: ...

    def next_task_within(self, milliseconds: int) -> TaskInfo | None:
        """
        The next pack in plan order, or None if none came in time or all were handed out.
        """

    @property
    def is_at_end(self) -> bool: ...

    def deliver(self, sequence: int, made: bytes) -> bytes:
        """In each rank's order. What the rank is told."""

    def forget_lengths(self, sequence: int) -> None:
        """
        No worker can make that pack, PLAN_MISMATCH: a later run measures its samples anew.
        """

    def end(self) -> bytes:
        """What a rank is told after its last pack."""

    def describe(self, sample_id: int) -> tuple[int, str, int, int, list[str]]: ...

class MadePack:
    """A finished pack on its way to its rank."""

    @property
    def made(self) -> bytes: ...

    @property
    def pixels(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)]: ...

    @property
    def tail(self) -> bytes: ...

    @property
    def n_bytes(self) -> int: ...

class CorePackWorker:
    """Makes packs that a coordinator has planned."""

    @staticmethod
    def create(settings: LoaderSettings) -> CorePackWorker:
        """Begins to open model and manifests on a thread."""

    def open_within(self, milliseconds: int) -> bool: ...

    def progress(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def report(self) -> dict: ...

    def close(self) -> None: ...

    def make(self, message: bytes, rejected: Sequence[int] = [], only: int = -1, why_rejected: str = '') -> MadePack:
        """
        Makes a pack; several threads may. `rejected` members are given up, `only` tries one and gives no payload.
        """
