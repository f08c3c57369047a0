"""Finds a row by number, line or id, and prepares it."""

from __future__ import annotations

from stoker import _core
from stoker.building_blocks import core_inspector, features_of
from stoker.errors import BadSampleError, InvalidArgumentError
from stoker.inspecting.sample import InspectedSample, Place
from stoker.inspecting.vocabulary import Vocabulary
from stoker.settings import Settings

__all__ = ["find_sample", "locate"]


def find_sample(
    settings: Settings, *, row: int | None = None, line: int | None = None, row_id: str | None = None
) -> InspectedSample:
    """The sample of one row; the first row where nothing is named.

    Raises:
        InvalidArgumentError: If there is no such row.
    """
    core = core_inspector(settings)
    core.open_dataset()
    source, number = locate(core, settings, row=row, line=line, row_id=row_id)
    manifest, at_line, byte_offset, n_bytes, media_root = core.location(source, number)
    _, _, _, patch, merge, *_ = core.normalisation
    try:
        features = features_of(core, core.read(source, number), media_root, source=source)
    except BadSampleError as error:  # a row too long to be read
        raise InvalidArgumentError(f"{manifest}:{at_line}: {error.message}", error.code) from error
    return InspectedSample(
        place=Place(manifest=manifest, row=number, line=at_line, byte_offset=byte_offset, n_bytes=n_bytes),
        features=features,
        vocabulary=Vocabulary(settings.model),
        tokens_per_pack=settings.pack.tokens_per_pack,
        align_samples_to=settings.pack.align_samples_to,
        patch=patch,
        merge=merge,
    )


def locate(
    core: _core.CoreInspector, settings: Settings, *, row: int | None, line: int | None, row_id: str | None
) -> tuple[int, int]:
    """(manifest, row in it)."""
    manifests = [core.name(source) for source in range(core.n_sources)]
    if line is not None:
        if len(manifests) > 1:
            raise InvalidArgumentError(
                f"--line needs one manifest, the settings have {len(manifests)}: use --row, or give the manifest "
                "itself with --model",
                "SETTINGS",
            )
        at = core.row_at_line(0, line)
        if at is None:
            raise InvalidArgumentError(f"{manifests[0]} has no row at line {line}: blank, or past its end", "SETTINGS")
        return 0, at
    if row_id is not None:
        for source in range(len(manifests)):
            found = core.row_with_id(source, row_id)
            if found is not None:
                return source, found
        raise InvalidArgumentError(f"no row of {', '.join(manifests)} has the id {row_id!r}", "SETTINGS")
    left = row or 0
    for source in range(len(manifests)):
        n_rows = core.n_rows(source)
        if left < n_rows:
            return source, left
        left -= n_rows
    total = (row or 0) - left
    raise InvalidArgumentError(f"there is no row {row or 0}: the data has {total} rows, the first is row 0", "SETTINGS")
