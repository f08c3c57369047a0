"""A sample in the terminal: colour where there is colour, and signs that survive without it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stoker.building_blocks import MediaFeatures
from stoker.inspecting.sample import InspectedSample

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
        n, n_patches = len(f.input_ids), sum(m.patches[1] - m.patches[0] for m in f.media)
        share = f"{100 * n / sample.tokens_per_pack:.1f} % of a pack of {sample.tokens_per_pack}"
        _line(console, "length", f"{n} tokens ({share}), {f.n_trained} trained, {n_patches} patches")
        _line(console, "cost", f"{f.cost / 1e9:.2f} TFLOP, forward and backward, as planning counts it")


def _turn(sample: InspectedSample, turn: object, console: Console) -> None:
    from stoker.building_blocks import TurnFeatures

    assert isinstance(turn, TurnFeatures)
    text = Text()
    for run in sample.runs(turn):
        if run.media is not None:
            text.append(f"[media {run.media}: {run.end - run.begin} tokens]", "cyan")
        elif run.is_trained:
            text.append(_OPEN, _TRAINED).append(_visible(run.text), _TRAINED).append(_CLOSE, _TRAINED)
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


def _media_cells(media: MediaFeatures) -> list[str]:
    reference = media.reference if len(media.reference) <= 80 else media.reference[:60] + "..."
    cells = [
        escape(_shown(reference)),
        str(media.n_bytes),
        _size(media.stored_size),
        str(media.orientation),
        _size(media.upright_size),
        media.size_from,
    ]
    if media.bad is not None:
        return [*cells, f"[red]{media.bad.code}[/]", "", ""]
    _, grid_h, grid_w = media.grid_thw
    return [*cells, _size(media.target_size), f"{grid_h}x{grid_w}", str(media.tokens[1] - media.tokens[0])]


def _tokens(sample: InspectedSample, console: Console, *, all_tokens: bool) -> None:
    f = sample.features
    table = Table(title="tokens (* trained)", title_justify="left", box=None, pad_edge=False)
    for name in ("at", "id", "", "token", "positions t h w"):
        table.add_column(name, justify="right" if name in ("at", "id") else "left", overflow="fold")
    first_of = {media.tokens[0]: media.tokens[1] - media.tokens[0] for media in f.media}
    inner = {i for media in f.media for i in range(media.tokens[0] + 1, media.tokens[1])}
    listed = [i for i in range(len(f.input_ids)) if i not in inner]  # a media's placeholders are one line
    n_hidden = len(listed) - 2 * _WIDEST
    if not all_tokens and n_hidden > 0:
        listed = [*listed[:_WIDEST], -1, *listed[-_WIDEST:]]
    for i in listed:
        if i < 0:
            table.add_row("...", "", "", f"{n_hidden} more: --tokens shows all", "")
            continue
        is_trained = bool(f.labels[i] != -100)
        text = _visible(sample.vocabulary.text(int(f.input_ids[i]))).replace("\n", "\\n").replace(" ", "·")
        if first_of.get(i, 1) > 1:
            text += f" × {first_of[i]}"
        positions = " ".join(str(p) for p in f.position_ids[1:, i].tolist())
        style = _TRAINED if is_trained else None
        table.add_row(str(i), str(f.input_ids[i]), "*" if is_trained else "", escape(text), positions, style=style)
    console.print(table)
