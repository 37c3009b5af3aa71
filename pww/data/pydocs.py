"""The embedded corpus: the documentation inside the installed Python, about 2 MB, wherever we run.

`pydoc_data.topics` and the standard library's docstrings, read from its source files by `ast`: no
module is imported, so nothing runs and the order never depends on what is loaded. Two Python
versions give two corpora, and the corpus digest shows it.
"""

import ast
import hashlib
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from pww.data.pieces import Piece, Span
from pww.errors import DataError

SKIPPED = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "site-packages",
        "dist-packages",
        "ensurepip",
        "turtledemo",
        "lib-dynload",
        "__pycache__",
        "__phello__",
    }
)
"""Folders that hold no documentation, or that differ between installations of one version."""
TOPICS = Path("pydoc_data") / "topics.py"

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class PythonDocs:
    """The language reference by topic, then one document a documented module, in name order."""

    def __init__(self, folder: Path = Path(sysconfig.get_path("stdlib"))) -> None:
        self._folder = folder
        self._kept: dict[Path, tuple[str, ...]] = {}

    def fingerprint(self) -> str:
        """SHA-256 over the names and bytes of every source file read."""
        total = hashlib.sha256(b"pydocs")
        for path in self._sources:
            name = path.relative_to(self._folder).as_posix().encode()
            total.update(hashlib.sha256(name).digest())
            total.update(hashlib.sha256(_read(path)).digest())
        return total.hexdigest()

    def pieces(self) -> tuple[Piece, ...]:
        """One: it is read in seconds."""
        return (Piece((Span(0),), 0),)

    def read(self, spans: Sequence[Span]) -> Iterator[str]:
        """Every document; each file is parsed once (all: about three seconds), then kept."""
        for path in sorted(self._sources, key=lambda path: path != self._folder / TOPICS):
            if path not in self._kept:
                self._kept[path] = self._parsed(path)
            yield from self._kept[path]

    @cached_property
    def _sources(self) -> tuple[Path, ...]:
        found = []
        for folder, inner, files in os.walk(self._folder):
            inner[:] = sorted(set(inner) - SKIPPED)
            found += [Path(folder) / name for name in files if name.endswith(".py")]
        if not found:
            raise DataError(
                f"no Python source in {self._folder}, so data.kind=pydocs has no text;"
                " use a Python with its standard library unpacked, or another corpus (data=...)"
            )
        return tuple(sorted(found, key=lambda path: path.relative_to(self._folder).as_posix()))

    def _parsed(self, path: Path) -> tuple[str, ...]:
        """The documents of one file."""
        tree = _parse(path)
        relative = path.relative_to(self._folder)
        if relative == TOPICS:
            texts = _topics(tree)
        else:
            texts = [_docstrings(tree, name=".".join(relative.with_suffix("").parts))]
        # A docstring may hold a lone surrogate as an example; text for a tokenizer may not.
        return tuple(text.encode(errors="backslashreplace").decode() for text in texts if text)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise DataError(
            f"cannot read {path}: {fault.strerror}; use another corpus (data=...)"
        ) from None


def _parse(path: Path) -> ast.Module:
    """The syntax tree; a file that this Python cannot parse (a template) has no docstrings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in the library are not our user's concern
        try:
            return ast.parse(_read(path))
        except (SyntaxError, ValueError):
            return ast.Module(body=[], type_ignores=[])


def _topics(tree: ast.Module) -> list[str]:
    """The values of the dict `topics`, by key."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            return [f"{name}\n\n{topics[name]}\n" for name in sorted(topics)]
    return []


def _docstrings(tree: ast.Module, *, name: str) -> str:
    """The module's docstring and those of its classes and functions, each below its dotted name."""
    entries = []
    text = ast.get_docstring(tree, clean=False)
    if text:
        entries.append((name, text))
    entries += _inner(tree, name)
    return "\n".join(f"{title}\n\n{inspect.cleandoc(text)}\n" for title, text in entries)


def _inner(parent: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Dotted name and docstring of every class and function below `parent`, as written."""
    for node in ast.iter_child_nodes(parent):
        inside = name
        if isinstance(node, Documented):
            inside = f"{name}.{node.name}"
            text = ast.get_docstring(node, clean=False)
            if text:
                yield inside, text
        if isinstance(node, ast.stmt | ast.excepthandler):
            yield from _inner(node, inside)
