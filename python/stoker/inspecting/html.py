"""A sample as one HTML page that needs nothing beside itself: no script, no network."""

from __future__ import annotations

import base64
from html import escape

import numpy as np
import numpy.typing as npt

from stoker.building_blocks import ClipFeatures, MediaFeatures, TurnFeatures
from stoker.inspecting.png import png_bytes
from stoker.inspecting.sample import InspectedSample, weight_mark

__all__ = ["page"]

_MOST_FRAMES = 16
_STYLE = """
:root { color-scheme: light dark; --soft: #8883; --line: #8886; --trained: #1a7f37; --media: #0969da; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --trained: #3fb950; --media: #58a6ff; --bad: #ff7b72 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
th { font-weight: 600 } code, .text, .tokens { font-family: ui-monospace, monospace; font-size: .92em }
.turn { border-left: 3px solid var(--line); margin: .8rem 0; padding: .1rem 0 .1rem .8rem }
.turn > b { font-weight: 600 } .text { white-space: pre-wrap; overflow-wrap: anywhere }
.trained { color: var(--trained); text-decoration: underline; text-underline-offset: 3px; font-weight: 600 }
.trained::before { content: "\\27E6" } .trained::after { content: "\\27E7" }
.media { color: var(--media) } .bad { color: var(--bad); font-weight: 600 } .quiet { opacity: .7 }
figure { margin: 1rem 0 } .picture { position: relative; display: inline-block; max-width: 100%; line-height: 0 }
.picture img { max-width: 100% }
.picture svg { position: absolute; inset: 0; width: 100%; height: 100% }
input.grid:not(:checked) ~ .picture svg { display: none }
details summary { cursor: pointer } .wide { overflow-x: auto }
"""


def page(sample: InspectedSample) -> str:
    """The whole page."""
    place = sample.place
    title = f"{place.manifest}:{place.line}" if place else "sample"
    body = [
        f"<h1>{_safe(title)}</h1>",
        _facts(sample),
        "<h2>Turns</h2>" if sample.features.turns else "",
        '<p class="quiet">What is trained is <span class="trained">marked</span>.</p>' if sample.features.turns else "",
        *(_turn(sample, turn) for turn in sample.features.turns),
        "<h2>Media, as the model gets them</h2>" if sample.features.media or sample.features.clips else "",
        *(_figure(sample, k, media) for k, media in enumerate(sample.features.media)),
        *(_clip(sample, k, clip) for k, clip in enumerate(sample.features.clips)),
        _tokens(sample),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _safe(text: str) -> str:
    return escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _size(size: tuple[int, int] | None) -> str:
    return f"{size[0]} × {size[1]}" if size and size != (0, 0) else "unknown"


def _row(name: str, value: str) -> str:
    return f"<tr><th>{name}</th><td>{value}</td></tr>"


def _facts(sample: InspectedSample) -> str:
    f, place = sample.features, sample.place
    rows = []
    if place:
        rows.append(
            _row("lies at", f"row {place.row}, line {place.line}, byte {place.byte_offset}, {place.n_bytes} bytes")
        )
    if f.id:
        rows.append(_row("id", _safe(f.id)))
    if f.bad is None:
        rows.append(_row("verdict", "a run uses it"))
    else:
        where = f" ({_safe(f.bad.media)})" if f.bad.media else ""
        said = f'<span class="bad">a run leaves it out: {f.bad.code}: {_safe(f.bad.message)}{where}</span>'
        rows.append(_row("verdict", said))
    if f.turns:
        rows.append(_row("length", sample.length))
        rows.append(_row("cost", f"{f.cost / 1e9:.2f} TFLOP, forward and backward, as planning counts it"))
    return "<table>" + "".join(rows) + "</table>"


def _turn(sample: InspectedSample, turn: TurnFeatures) -> str:
    pieces = []
    for run in sample.runs(turn):
        if run.media is not None:
            pieces.append(f'<a class="media" href="#{run.media.replace(" ", "-")}">{run.shown}</a>')
        elif run.is_trained:
            pieces.append(f'<span class="trained">{_safe(run.text)}</span>{weight_mark(run.weight)}')
        else:
            pieces.append(_safe(run.text))
    begin, end = turn.tokens
    head = f"<b>{_safe(turn.role or 'by the template')}</b> <span class=quiet>tokens {begin} to {end}</span>"
    return f'<div class="turn">{head}<div class="text">{"".join(pieces)}</div></div>'


def _figure(sample: InspectedSample, k: int, media: MediaFeatures) -> str:
    rows = [
        _row("reference", f"<code>{_safe(media.reference[:200])}</code>"),
        _row("file", f"{media.n_bytes} bytes, stored {_size(media.stored_size)}, EXIF orientation {media.orientation}"),
        _row("upright", f"{_size(media.upright_size)} (height × width), from the {media.size_from}"),
    ]
    if media.bad is not None:
        rows.append(_row("problem", f'<span class="bad">{media.bad.code}: {_safe(media.bad.message)}</span>'))
        return f'<figure id="media-{k}"><table>{"".join(rows)}</table></figure>'
    _, grid_h, grid_w = media.grid_thw
    begin, end = media.tokens
    if media.prepared_size != media.upright_size:
        rows.append(_row("your code", f"makes it {_size(media.prepared_size)}"))
    rows.append(_row("resized to", f"{_size(media.target_size)}: {grid_h} × {grid_w} patches of {sample.patch}"))
    rows.append(
        _row("tokens", f"{end - begin} (each stands for {sample.merge} × {sample.merge} patches), {begin} to {end}")
    )
    picture = sample.picture(media)
    shown = ""
    if picture is not None:
        shown = _switch(f"grid-{k}") + _image(sample, f"media {k} after the resize", picture, media.grid_thw)
    return f'<figure id="media-{k}"><table>{"".join(rows)}</table>{shown}</figure>'


def _switch(name: str) -> str:
    return f'<input class="grid" id="{name}" type="checkbox" checked><label for="{name}"> patch grid</label><br>'


def _image(sample: InspectedSample, alt: str, picture: npt.NDArray[np.uint8], grid: tuple[int, int, int]) -> str:
    data = base64.b64encode(png_bytes(picture)).decode()
    height, width = picture.shape[:2]
    return (
        f'<div class="picture"><img alt="{alt}" width="{width}" height="{height}" '
        f'style="height:auto" src="data:image/png;base64,{data}">{_grid(sample, *grid[1:])}</div>'
    )


def _clip(sample: InspectedSample, k: int, clip: ClipFeatures) -> str:
    grid_t, grid_h, grid_w = clip.grid_thw
    n_tokens = sum(end - begin for begin, end in clip.tokens)
    first = f"{_size(clip.first_size)}, then to " if clip.first_size else ""
    times = ", ".join(f"{second:.3f}" for second in clip.seconds)
    numbers = ", ".join(map(str, clip.frame_numbers))
    rows = [
        _row("frames", f"{len(clip.frames)}: numbers {numbers} of a source of {clip.fps:g} a second"),
        _row("seconds", f"{times} (of each temporal patch)"),
        _row("resized to", f"{first}{_size(clip.target_size)}: {grid_h} × {grid_w} patches of {sample.patch}"),
        _row("tokens", f"{n_tokens} in {grid_t} temporal patches"),
    ]
    shown = []
    for i in _spread(len(clip.frames), _MOST_FRAMES):
        frame = clip.frames[i]
        caption = f"frame {i}: <code>{_safe(frame.reference[:200])}</code>, stored {_size(frame.stored_size)}"
        if frame.bad is not None:
            said = f'<span class="bad">{frame.bad.code}: {_safe(frame.bad.message)}</span>'
            shown.append(f"<div>{caption}: {said}</div>")
            continue
        picture = sample.frame(clip, i)
        if picture is not None:
            shown.append(f"<div>{caption}</div>" + _image(sample, f"frame {i} of clip {k}", picture, clip.grid_thw))
    if len(clip.frames) > _MOST_FRAMES:
        rows.append(_row("shown", f"{_MOST_FRAMES} of {len(clip.frames)} frames, spread evenly"))
    return f'<figure id="clip-{k}"><table>{"".join(rows)}</table>{_switch(f"clip-grid-{k}")}{"".join(shown)}</figure>'


def _spread(n: int, most: int) -> list[int]:
    return [i * n // min(n, most) for i in range(min(n, most))]


def _grid(sample: InspectedSample, grid_h: int, grid_w: int) -> str:
    """Thin lines round patches, strong ones round what becomes one token."""
    thin = "".join(f"M{x} 0V{grid_h}" for x in range(1, grid_w)) + "".join(f"M0 {y}H{grid_w}" for y in range(1, grid_h))
    m = sample.merge
    strong = "".join(f"M{x} 0V{grid_h}" for x in range(0, grid_w + 1, m))
    strong += "".join(f"M0 {y}H{grid_w}" for y in range(0, grid_h + 1, m))
    stroke = 'fill="none" vector-effect="non-scaling-stroke"'
    return (
        f'<svg viewBox="0 0 {grid_w} {grid_h}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{strong}" {stroke} stroke="#000" stroke-opacity=".55" stroke-width="3"/>'
        f'<path d="{thin}" {stroke} stroke="#fff" stroke-opacity=".35" stroke-width="1"/>'
        f'<path d="{strong}" {stroke} stroke="#fff" stroke-opacity=".85" stroke-width="1"/></svg>'
    )


def _tokens(sample: InspectedSample) -> str:
    f = sample.features
    if not len(f.input_ids):
        return ""
    rows = []
    n_placeholders = {begin: end - begin for _, (begin, end) in sample.placeholders()}
    skipped = {i for begin, n in n_placeholders.items() for i in range(begin + 1, begin + n)}
    weights = sample.weights()
    for i, number in enumerate(f.input_ids.tolist()):
        if i in skipped:
            continue
        text = _safe(sample.vocabulary.text(number)).replace("\n", "\\n").replace(" ", "·")
        is_trained = weights[i] > 0
        mark = f"*{weight_mark(weights[i])}" if is_trained else ""
        times = f" × {n_placeholders[i]}" if i in n_placeholders else ""
        token = f'<span class="trained">{text}</span>' if is_trained else text + times
        positions = " ".join(str(p) for p in f.position_ids[1:, i].tolist())
        rows.append(f"<tr><td>{i}<td>{number}<td>{mark}<td>{token}<td>{positions}</tr>")
    head = "<tr><th>at<th>id<th>trained<th>token<th>positions t h w</tr>"
    table = f'<div class="wide"><table class="tokens">{head}{"".join(rows)}</table></div>'
    return f"<h2>Tokens</h2><details><summary>{len(f.input_ids)} tokens and their ids</summary>{table}</details>"
