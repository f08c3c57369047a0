"""Every row that docs/data.md shows is read, and in the form that it is shown for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from doc_blocks import blocks_of
from stoker import _core

PAGE = Path(__file__).resolve().parent.parent / "docs" / "data.md"


def test_every_row_shown_is_read() -> None:
    options: dict[str, Any] = {}
    shapes = []
    for block in blocks_of(PAGE):
        if block.language == "yaml":
            options = {k: v for k, v in yaml.safe_load(block.text).items() if k != "manifest"}
        elif block.language == "json":
            assert block.note.startswith("row")
            row = json.loads(block.text)
            sample = _core.parse_row(json.dumps(row).encode(), **(options if block.note == "row data" else {}))
            n_media = sum(part.keys() != {"text"} for turn in sample["turns"] for part in turn["parts"])
            assert n_media == len(sample["media"]) + len(sample["boxes"])
            shapes.append(sample["row_shape"])
    assert set(shapes) == {"messages", "conversations", "prompt-completion", "query-response", "instruction"}
    assert len(shapes) >= 8


def test_the_page_names_every_setting_of_a_manifest() -> None:
    text = PAGE.read_text()
    for name in ("shape", "columns", "roles", "nonfinite", "max_row_bytes", "media_root"):
        assert f"`{name}`" in text
