"""A sample in the terminal: colour where there is colour, and signs that survive without it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stoker.building_blocks import ClipFeatures, MediaFeatures, PictureFeatures
from stoker.inspecting.sample import InspectedSample, weight_mark

__all__ = ["show"]

_TRAINED = "bold green"
_OPEN, _CLOSE = "⟦", "⟧"  # round what is trained, for terminals and eyes without colour
_WIDEST = 20  # tokens of the table that are shown of each end of a long sample


def show(sample: InspectedSample, console: Console, *, all_tokens: bool = False) -> None:
    """Prints where the sample lies, its turns, media and tokens."""
    _head(sample, console)
    if not sample.features.turns:
        return
    console.print()
    console.print(f"turns       {_OPEN}trained{_CLOSE} stands between brackets", highlight=False, markup=False)
    for turn in sample.features.turns:
        _turn(sample, turn, console)
    if sample.features.media:
        console.print()
        console.print(_media_table(sample))
    for k, clip in enumerate(sample.features.clips):
        console.print()
        _clip(f"clip {k}", clip, console, all_frames=all_tokens)
    if sample.features.boxes:
        console.print()
        console.print(_box_table(sample))
    console.print()
    _tokens(sample, console, all_tokens=all_tokens)


def _line(console: Console, name: str, text: str, style: str = "") -> None:
    console.print(Text.assemble(f"{name:<12}", (text, style)), soft_wrap=True, highlight=False)


def _head(sample: InspectedSample, console: Console) -> None:
    f = sample.features
    if sample.place is not None:
        place = sample.place
        _line(
            console,
            "sample",
            f"{_shown(place.manifest)}:{place.line} (row {place.row}, byte {place.byte_offset}, {place.n_bytes} bytes)",
        )
    if f.id:
        _line(console, "id", f.id)
    if f.bad is None:
        _line(console, "verdict", "a run uses it", "green")
    else:
        is_named = f.bad.media is None or f.bad.media in f.bad.message
        where = "" if is_named else f" ({_shown(f.bad.media or '')})"
        _line(console, "verdict", f"a run leaves it out: {f.bad.code}: {_shown(f.bad.message)}{where}", "bold red")
    if f.turns:
        _line(console, "length", sample.length)
        _line(console, "cost", f"{f.cost / 1e9:.2f} TFLOP, forward and backward, as planning counts it")


def _turn(sample: InspectedSample, turn: object, console: Console) -> None:
    from stoker.building_blocks import TurnFeatures

    assert isinstance(turn, TurnFeatures)
    text = Text()
    for run in sample.runs(turn):
        if run.media is not None:
            text.append(run.shown, "cyan")
        elif run.is_trained:
            text.append(_OPEN, _TRAINED).append(_visible(run.text), _TRAINED).append(_CLOSE, _TRAINED)
            text.append(weight_mark(run.weight), _TRAINED)
        else:
            text.append(_visible(run.text), "" if turn.is_assistant else "dim")
    begin, end = turn.tokens
    console.print(Text(f"  {turn.role or 'by the template'}, tokens {begin} to {end}", "bold"), highlight=False)
    for line in text.split("\n", allow_blank=False):
        console.print(Text("    ").append_text(line), soft_wrap=True, highlight=False)


def _visible(text: str) -> str:
    return "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in _shown(text))


def _shown(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _size(size: tuple[int, int] | None) -> str:
    return f"{size[0]}x{size[1]}" if size and size != (0, 0) else "?"


def _media_table(sample: InspectedSample) -> Table:
    table = Table(title="media (height x width)", title_justify="left", box=None, pad_edge=False)
    for name in ("", "reference", "bytes", "stored", "EXIF", "upright", "from", "resized to", "grid", "tokens"):
        table.add_column(name, overflow="fold", justify="left")
    for k, media in enumerate(sample.features.media):
        table.add_row(str(k), *_media_cells(media))
    return table


def _picture_cells(picture: PictureFeatures) -> list[str]:
    reference = picture.reference if len(picture.reference) <= 80 else picture.reference[:60] + "..."
    return [
        escape(_shown(reference)),
        str(picture.n_bytes),
        _size(picture.stored_size),
        str(picture.orientation),
        _size(picture.upright_size),
        picture.size_from,
    ]


def _clip(name: str, clip: ClipFeatures, console: Console, *, all_frames: bool) -> None:
    grid_t, grid_h, grid_w = clip.grid_thw
    n_tokens = sum(end - begin for begin, end in clip.tokens)
    first = f"{_size(clip.first_size)}, then to " if clip.first_size else ""
    _line(
        console,
        name,
        f"{len(clip.frames)} frames of a source of {clip.fps:g} a second, resized to {first}{_size(clip.target_size)}: "
        f"grid {grid_t}x{grid_h}x{grid_w}, {n_tokens} tokens",
    )
    table = Table(title=f"frames of {name} (height x width)", title_justify="left", box=None, pad_edge=False)
    for column in ("", "reference", "bytes", "stored", "EXIF", "upright", "from", "number", "patch", "at"):
        table.add_column(column, overflow="fold", justify="left")
    depth = max(1, -(-len(clip.frame_numbers) // max(1, len(clip.seconds))))
    listed = list(range(len(clip.frames)))
    n_hidden = len(listed) - 2 * _WIDEST
    if not all_frames and n_hidden > 0:
        listed = [*listed[:_WIDEST], -1, *listed[-_WIDEST:]]
    for i in listed:
        if i < 0:
            table.add_row("...", f"{n_hidden} more: --tokens shows all")
            continue
        frame = clip.frames[i]
        patch = i // depth
        cells = [str(clip.frame_numbers[i]), str(patch), f"{clip.seconds[patch]:.3f} s"]
        if frame.bad is not None:
            cells = [f"[red]{frame.bad.code}[/]"]
        table.add_row(str(i), *_picture_cells(frame), *cells)
    console.print(table)


def _media_cells(media: MediaFeatures) -> list[str]:
    cells = _picture_cells(media)
    if media.bad is not None:
        return [*cells, f"[red]{media.bad.code}[/]", "", ""]
    _, grid_h, grid_w = media.grid_thw
    return [*cells, _size(media.target_size), f"{grid_h}x{grid_w}", str(media.tokens[1] - media.tokens[0])]


def _box_table(sample: InspectedSample) -> Table:
    table = Table(title="boxes", title_justify="left", box=None, pad_edge=False)
    for name in ("", "in", "in the row", "in the text"):
        table.add_column(name, overflow="fold", justify="left")
    for k, box in enumerate(sample.features.boxes):
        given = box.name if box.image is None else f"[{', '.join(f'{x:g}' for x in box.points)}]"
        where = "" if box.image is None else f"media {box.image}"
        table.add_row(str(k), where, escape(_shown(given)), escape(_shown(box.text)))
    return table


def _tokens(sample: InspectedSample, console: Console, *, all_tokens: bool) -> None:
    f = sample.features
    weights = sample.weights()
    table = Table(title="tokens (* trained)", title_justify="left", box=None, pad_edge=False)
    for name in ("at", "id", "", "token", "positions t h w"):
        table.add_column(name, justify="right" if name in ("at", "id") else "left", overflow="fold")
    first_of = {begin: end - begin for _, (begin, end) in sample.placeholders()}
    inner = {i for _, (begin, end) in sample.placeholders() for i in range(begin + 1, end)}
    listed = [i for i in range(len(f.input_ids)) if i not in inner]  # a media's placeholders are one line
    n_hidden = len(listed) - 2 * _WIDEST
    if not all_tokens and n_hidden > 0:
        listed = [*listed[:_WIDEST], -1, *listed[-_WIDEST:]]
    for i in listed:
        if i < 0:
            table.add_row("...", "", "", f"{n_hidden} more: --tokens shows all", "")
            continue
        is_trained = weights[i] > 0
        mark = f"*{weight_mark(weights[i])}" if is_trained else ""
        text = _visible(sample.vocabulary.text(int(f.input_ids[i]))).replace("\n", "\\n").replace(" ", "·")
        if first_of.get(i, 1) > 1:
            text += f" × {first_of[i]}"
        positions = " ".join(str(p) for p in f.position_ids[1:, i].tolist())
        style = _TRAINED if is_trained else None
        table.add_row(str(i), str(f.input_ids[i]), mark, escape(text), positions, style=style)
    console.print(table)
