"""Chat templates that the engine does not render itself, rendered by jinja2 the way transformers does it.

Imported only when such a template is met (or asked for): without one no Python runs in the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stoker.errors import InvalidArgumentError

if TYPE_CHECKING:
    import jinja2

__all__ = ["make_renderer"]

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def make_renderer(template: str, folder: str) -> Callable[[str], tuple[str, str]]:
    """Compiles a template.

    Args:
        template: Its text.
        folder: The checkpoint; its ``tokenizer_config.json`` names the special tokens that a template may use.

    Returns:
        A function that takes a request (see ``core/text/turn_renderer.h``) and returns ("", text), or a reason's name
        and what went wrong. Any number of threads may call it.

    Raises:
        InvalidArgumentError: If jinja2 is not installed, or the template is none.
    """
    try:
        import jinja2
    except ImportError as error:
        raise InvalidArgumentError(
            "this chat template is not one that is rendered natively, and jinja2, which renders any other, is not "
            "installed: pip install 'stoker[jinja]'",
            "TEMPLATE_UNKNOWN",
        ) from error
    environment = _environment()
    try:
        compiled = environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise InvalidArgumentError(f"line {error.lineno} of the template: {error.message}", "MODEL_FOLDER") from error
    names = _special_tokens(Path(folder))

    def render(request: str) -> tuple[str, str]:
        values = json.loads(request)
        for message in values["messages"]:
            for call in message.get("tool_calls", ()):
                function = call["function"]
                function["arguments"] = _as_object(function["arguments"])
        try:
            return "", compiled.render(**names, **values, documents=None)
        except _RaisedByTemplateError as error:
            return "TURN_ORDER", f"the chat template says: {error}"
        except Exception as error:
            return "TEMPLATE_FAILED", f"the chat template fails: {type(error).__name__}: {error}"

    return render


class _RaisedByTemplateError(Exception):
    """The template called raise_exception()."""


def _environment() -> jinja2.Environment:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what a model says; here it is only its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

        def _content(self, caller: Callable[[], str]) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _refuse_date
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise _RaisedByTemplateError(str(message))


def _refuse_date(form: str) -> NoReturn:
    raise ValueError(f"it asks for today's date ({form}); then no two runs would be the same")


def _as_object(arguments: str) -> Any:
    """Arguments that were an object in the row are one again; text that is to be inserted as it is stays text."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    is_object = isinstance(value, dict | list) and json.dumps(value, ensure_ascii=False) == arguments
    return value if is_object else arguments


def _special_tokens(folder: Path) -> dict[str, str]:
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    names: dict[str, str] = {}
    for key in _SPECIAL:
        value = config.get(key) if isinstance(config, Mapping) else None
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            names[key] = content
    return names
