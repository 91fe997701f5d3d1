"""Finds the source files of a program without running it.

`fingerprint` hashes them into the key of a reference.  Imports are followed through the files
of the project under test, but not into installed distributions and the standard library.

The key must be known before the program runs, and must change when a new file will be imported
instead of another one.  Therefore the key cannot be made from the list of files that an earlier Run
loaded.  However, a Run also loads files that the scan cannot find, such as an import by a computed
name, and reads others.  So a cache entry stores what its Run read (`inputs`), and is valid only
while this is unchanged.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.machinery
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pytest_trainsafe.core.code_files import is_project, is_standard
from pytest_trainsafe.core.links import unlinked
from pytest_trainsafe.core.untrusted import open_file

_PARSING = threading.Lock()
_TRIES = 20

_SUFFIXES = tuple(importlib.machinery.all_suffixes())


@dataclass(slots=True)
class Sources:
    """The files and modules that a program imports.

    `files` are the project's files.  `installed` maps the top-level name of every other package to
    the file of one of its modules.  `missing` has the names that cannot be found now but may exist
    later.  `states` has the state of every file before it was read, and of every folder before it
    was searched: while none of them changes, the result is still valid.
    """

    files: set[Path] = field(default_factory=set)
    installed: dict[str, Path] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    states: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Import:
    """One import statement: `module` after `level` dots, and the `names` taken from it."""

    module: str
    level: int = 0
    names: tuple[str, ...] = ()


def sources(file: Path, module: str, search: Sequence[str] | None = None) -> Sources:
    """The source files that running `file` as the module `module` may import.

    Follows `import` statements anywhere in the source, and `import_module("name")` with a constant
    name.  Names that are computed at run time are not found.  `search` is the module search path,
    by default that of this process.
    """
    return _Walk(search).walk(file, module)


class _Walk:
    def __init__(self, search: Sequence[str] | None) -> None:
        self.search = list(search) if search is not None else None
        self.found = Sources()
        self.specs: dict[str, importlib.machinery.ModuleSpec | None] = {}
        self.pending: list[tuple[Path, str]] = []

    def walk(self, file: Path, module: str) -> Sources:
        importlib.invalidate_caches()
        self.pending.append((file, module))
        for parent in _parents(module):
            self._module(parent)
        while self.pending:
            path, name = self.pending.pop()
            if path in self.found.files:
                continue
            self.found.files.add(path)
            self._note(str(path))
            if path.suffix == ".py":
                is_package = path.name == "__init__.py"
                for imported in _imports(_read(path)):
                    self._follow(imported, name, is_package)
        return self.found

    def _note(self, path: str) -> None:
        if path not in self.found.states:
            self.found.states[path] = state_of(path)

    def _follow(self, imported: _Import, importer: str, is_package: bool) -> None:
        base = imported.module
        if imported.level:
            package = importer.split(".")
            drop = imported.level - (1 if is_package else 0)
            package = package[: len(package) - drop] if drop else package
            base = ".".join([*package, base] if base else package)
        if not base:
            return
        spec = None
        for name in (*_parents(base), base):
            spec = self._module(name)
        if spec is not None and spec.submodule_search_locations is not None and _entered(spec):
            for name in imported.names:  # each is a module or an attribute
                self._module(f"{base}.{name}", required=False)

    def _module(self, name: str, required: bool = True) -> importlib.machinery.ModuleSpec | None:
        """Finds the module `name` and its parent packages; returns the module's spec or None.

        The file of a module of the project is added to the files to read, and a module of another
        package to `installed`.  With `required`, a module that is not found is added to `missing`.
        Modules inside packages that are not the project's are not looked up.
        """
        if name in self.specs:
            return self.specs[name]
        parent = name.rpartition(".")[0]
        path = self.search
        if parent:
            above = self._module(parent, required)
            if above is None or above.submodule_search_locations is None or not _entered(above):
                return self.specs.setdefault(name, None)
            path = unlinked(above.submodule_search_locations)
        for entry in sys.path if path is None else path:
            self._note(entry)
            if os.path.isdir(below := _below(entry, name)):  # may become a package
                self._note(below)
        spec = self.specs[name] = _find_spec(name, path)
        if spec is None:
            if required:
                self.found.missing.add(name)
        elif spec.origin and spec.has_location:
            file = Path(spec.origin)
            if is_project(file):
                self.pending.append((file, name))
            elif not is_standard(file):
                self.found.installed.setdefault(name.partition(".")[0], file)
        return spec


def state_of(path: str) -> object:
    """A value that changes when a file or a folder is written; () if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return ()
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _find_spec(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """`importlib.util.find_spec`, but without importing the parent packages."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path, None)
        except (AttributeError, ImportError, KeyError, ValueError):
            spec = None  # KeyError: a namespace package whose parent is not imported
        if spec is not None:
            return spec
    folders = [found for entry in path or () if os.path.isdir(found := _below(entry, name))]
    if not folders:
        return None
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


def _below(folder: str, name: str) -> str:
    return os.path.join(folder, name.rpartition(".")[2])


def _entered(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether the package belongs to the project, so that its modules are followed."""
    where = [spec.origin] if spec.has_location and spec.origin else []
    return any(is_project(Path(path)) for path in where or spec.submodule_search_locations or ())


def content_hash(path: Path) -> str:
    """The hash of a file's content; "" if it is not a readable regular file."""
    try:
        with os.fdopen(open_file(path, follow=True), "rb") as file:
            return hashlib.file_digest(file, _blake).hexdigest()
    except OSError:
        return ""


def _blake() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@cache
def _imports(source: bytes) -> tuple[_Import, ...]:
    """The imports of a module's source; empty if the source does not compile."""
    try:
        tree = _parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    # Only the name of such a function makes expressions worth visiting, which are most of a tree.
    calls = b"import_module" in source or b"__import__" in source
    return tuple(_of_tree(tree, calls))


def _parse(source: bytes) -> ast.AST:
    """`ast.parse`, in one thread at a time.

    Before Python 3.13, two threads that build syntax trees at once may corrupt the shared
    recursion depth, which raises SystemError (python/cpython#106905).
    """
    with _PARSING:
        for _ in range(_TRIES):
            # SystemError: another thread parsed at the same time without taking the lock.
            with contextlib.suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _of_tree(tree: ast.AST, calls: bool) -> Iterator[_Import]:
    """The imports in a syntax tree; those of functions such as `import_module` only if `calls`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        match node:
            case ast.If(
                test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"),
                orelse=otherwise,
            ):
                pending.extend(otherwise)  # the body never runs
                continue
            case ast.Import(names=names):
                for alias in names:
                    yield _Import(alias.name)
            case ast.ImportFrom(module=module, level=level, names=names):
                yield _Import(module or "", level, tuple(alias.name for alias in names))
            case ast.Call(
                func=ast.Attribute(attr="import_module" | "__import__")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ) if name and all(part.isidentifier() for part in name.split(".")):
                yield _Import(name)
        if calls:
            pending.extend(ast.iter_child_nodes(node))
        else:
            pending.extend(_statements_in(node))


def _statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """The statements directly below a node, and the nodes that hold further ones."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, name, None)
        if isinstance(below, list):  # a lambda or a conditional expression has no list
            yield from below


def _parents(name: str) -> list[str]:
    """The parent packages of a module name: "a" and "a.b" for "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
