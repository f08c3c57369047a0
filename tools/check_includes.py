"""Checks that includes and imports point one way. A new edge is a decision: it is made by a row in this file.

C++: every ``#include "module/..."`` in ``core/`` and ``bindings/`` must be in ``INCLUDES``; a quoted include without a
module must lie beside the file. Python: the product never imports its test parts, and torch or ray are imported only by
the modules that exist for them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# base <- metric <- exec <- { exchange mem } <- data <- { index manifest plan source media text } <- model <- pipeline
# pipeline <- engine
#         metric <- diagnose <- { tune simulate }                      (only engine joins these to the pipeline)
# plan <- peers <- engine <- bindings
_DATA = {"base", "metric", "exec", "mem", "data"}
_STAGES = _DATA | {"index", "manifest", "plan", "source", "media", "text"}
INCLUDES: dict[str, set[str]] = {
    "base": set(),
    "metric": {"base"},
    "exec": {"base", "metric"},
    "exchange": {"base", "metric", "exec"},
    "mem": {"base", "metric", "exec"},
    "data": {"base", "metric", "exec", "mem"},
    "index": _DATA,
    "manifest": _DATA,
    "plan": _DATA,
    "source": _DATA,
    "media": _DATA,
    "text": _DATA,
    "model": _STAGES,
    "pipeline": _STAGES | {"exchange", "model"},
    "peers": _DATA | {"plan"},
    "diagnose": {"base", "metric"},
    "tune": {"base", "metric", "diagnose"},
    "simulate": {"base", "metric", "diagnose"},
    "engine": _STAGES | {"exchange", "model", "pipeline", "peers", "diagnose", "tune", "simulate"},
}
INCLUDES["bindings"] = set(INCLUDES)

# Only these parts of the Python package may import the test server and its data.
USES_TESTING = {"testing", "demo", "ladder"}
# A heavy package -> the parts of the Python package that may import it when they are imported themselves.
HEAVY = {"torch": {"torch"}, "ray": {"ray"}, "stoker.ray": {"ray"}, "stoker.torch": {"torch", "ray"}}

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def cxx_faults(root: Path) -> Iterator[str]:
    """Yields one line per include that the table does not allow."""
    for path in sorted([*root.glob("core/**/*.[hc]*"), *root.glob("bindings/**/*.[hc]*")]):
        if path.suffix not in {".h", ".cc", ".inc"}:
            continue
        parts = path.relative_to(root).parts
        module = parts[1] if parts[0] == "core" else "bindings"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = _INCLUDE.match(line)
            if match is None:
                continue
            target = match[1].split("/")
            where = f"{path.relative_to(root)}:{number}"
            if len(target) > 1 and target[0] in INCLUDES:
                if target[0] != module and target[0] not in INCLUDES.get(module, set()):
                    yield f"{where}: {module} must not include {match[1]}"
            elif ".." in target or not (path.parent / match[1]).is_file():
                yield f'{where}: "{match[1]}" is neither module/file nor a file beside this one'


def _imports(tree: ast.Module, package: list[str], *, at_import_only: bool) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name) of what a module imports; relative names are resolved against its package."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*stem, alias.name])) for alias in node.names)
        elif at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif at_import_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def python_faults(root: Path) -> Iterator[str]:
    """Yields one line per import in ``python/stoker`` that the product must not make."""
    base = root / "python"
    for path in sorted(base.glob("stoker/**/*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        part = parts[1]  # "torch" for stoker/torch.py as for stoker/torch/expand.py; "__init__" for the package itself
        package = list(parts[:-1])
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        where = path.relative_to(root)
        if part not in USES_TESTING:
            for line, name in _imports(tree, package, at_import_only=False):
                if _is_in(name, "stoker.testing"):
                    yield f"{where}:{line}: the product must not import {name}"
        for line, name in _imports(tree, package, at_import_only=True):
            for heavy, allowed in HEAVY.items():
                if _is_in(name, heavy) and part not in allowed:
                    yield f"{where}:{line}: stoker.{part} must not import {name} when it is imported"


def main() -> int:
    files = [*ROOT.glob("core/**/*.cc"), *ROOT.glob("python/stoker/**/*.py")]
    if not files:
        print("check_includes: found no file to check", file=sys.stderr)
        return 1
    faults = [*cxx_faults(ROOT), *python_faults(ROOT)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
