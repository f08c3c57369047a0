"""The tokenizer and the chat templates of a checkpoint folder, as the loader uses them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from stoker import _core
from stoker.jinja import make_renderer

__all__ = ["Tokenizer", "render_chat"]


class Tokenizer:
    """The byte-level BPE tokenizer of a ``tokenizer.json``; ids are those of Hugging Face tokenizers.

    Args:
        path: The file, or the checkpoint folder that it lies in.

    Raises:
        InvalidArgumentError: If it cannot be read, or is not of the known form; the message names the field.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = Path(path)
        self._core = _core.Tokenizer(file / "tokenizer.json" if file.is_dir() else file)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Self:
        """The tokenizer of a checkpoint folder."""
        return cls(Path(folder))

    def encode(self, text: str, *, guard: bool = False) -> npt.NDArray[np.int32]:
        """Ids of a text; nothing is added at either end.

        Args:
            text: Lone surrogates become U+FFFD.
            guard: Whether turn, end-of-text and vision tokens in it are ordinary text, as in a row's content.
        """
        n_bytes = len(text.encode("utf-8", "surrogatepass")) if guard else 0
        ids: npt.NDArray[np.int32] = self._core.encode(text, [(0, n_bytes)] if n_bytes else [])
        return ids

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
        """The text of some ids; bytes that are no whole character become U+FFFD."""
        return self._core.decode_bytes([int(i) for i in ids]).decode("utf-8", "replace")

    def token_id(self, token: str) -> int | None:
        """Id of an added token (``<|im_end|>``), or of the entry with exactly this text (`` the``)."""
        return self._core.token_id(token)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._core.vocab_size

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file."""
        return self._core.fingerprint


def render_chat(
    chat: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    model: str | os.PathLike[str],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    add_vision_id: bool = False,
    template: Literal["auto", "native", "jinja", "check"] = "auto",
) -> str:
    """A conversation as the model's chat template writes it, one placeholder per picture.

    Args:
        chat: A row as a manifest has it, or a list of messages.
        model: A checkpoint folder, or a template file.
        tools: Tools of a list of messages.
        add_generation_prompt: Whether an answer is begun at the end.
        add_vision_id: Whether pictures and clips are numbered.
        template: Who renders, as in the settings.

    Raises:
        BadSampleError: If the row is none, or the template refuses it.
        InvalidArgumentError: If there is no template, or nobody who renders it.
    """
    row: dict[str, Any] = dict(chat) if isinstance(chat, Mapping) else {"messages": list(chat)}
    if tools is not None:
        row["tools"] = list(tools)
    line = json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass")
    chunks, _ = _core.render_row(
        Path(model),
        line,
        engine=template,
        make_renderer=make_renderer,
        add_generation_prompt=add_generation_prompt,
        add_vision_id=add_vision_id,
    )
    return "".join(chunk.text for chunk in chunks)
