"""`python -m tools.map`: the source as a table (packages, lines, files, functions, imports), then as one line of JSON.

Formulas
    lines            as `wc -l` counts them
    functions        `def` and `async def`, methods and inner functions included
    imports / file   modules of this project that a file imports, mean over the files; imports of functions, which are
                     made late, count too
    longest chain    files each of which imports the next at the top of the module; type checking aside
    crossed types    classes of this project named by annotations (signatures, fields) in `engine/engine.py` and in the
                     modules of `engine/` that it reaches by imports: what a reader meets between request and token
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "gamaneh"
SOURCE = Path(__file__).parents[1] / "src"
ENTRY = f"{PACKAGE}.engine.engine"
EXEMPT = frozenset({"__init__", "__main__"})
EXIT_DUPLICATES = 1


@dataclass(frozen=True)
class Module:
    """One file.

    Args:
        name: with dots.
        tree: what stands in it.
    """

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Name of its package below the root; the root's own files are `(root)`."""
        parts = self.name.split(".")
        inside = self.path.name == "__init__.py"
        return parts[1] if len(parts) > 2 or (inside and len(parts) == 2) else "(root)"

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def classes(self) -> list[str]:
        """Names of its classes, inner ones too."""
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def functions(self) -> int:
        return sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(self.tree))

    def imports(self, known: frozenset[str], *, top: bool = False) -> set[str]:
        """Modules of this project that it imports; at the top of the module alone if asked for."""
        nodes = self.tree.body if top else ast.walk(self.tree)
        return {name for node in nodes for name in _imported(node, known) if name != self.name}


@dataclass(frozen=True, slots=True)
class PackageSize:
    """One package."""

    package: str
    files: int
    lines: int
    functions: int
    classes: int
    imports_per_file: float


@dataclass(frozen=True, slots=True)
class SourceMap:
    """The whole tree.

    Args:
        chain: the longest line of files each of which imports the next.
        crossed_types: between a request and its tokens.
        duplicate_modules, duplicate_classes: name -> where it occurs, for names that occur more than once.
    """

    packages: Sequence[PackageSize]
    chain: Sequence[str]
    crossed_types: Sequence[str]
    duplicate_modules: Mapping[str, Sequence[str]]
    duplicate_classes: Mapping[str, Sequence[str]]

    @property
    def duplicates(self) -> bool:
        return bool(self.duplicate_modules or self.duplicate_classes)


def read_modules(source: Path = SOURCE, package: str = PACKAGE) -> list[Module]:
    """All files of a package in a source folder, by name."""
    return [_read(path, source) for path in sorted((source / package).rglob("*.py"))]


def draw(modules: Sequence[Module]) -> SourceMap:
    """Measure the tree."""
    known = frozenset(module.name for module in modules)
    imports = {module.name: module.imports(known) for module in modules}
    groups: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        groups[module.package].append(module)
    sizes = [_size(name, group, imports) for name, group in groups.items()]
    stems = [(module.path.stem, module.name) for module in modules if module.path.stem not in EXEMPT]
    classes = [(name, module.name) for module in modules for name in module.classes]
    return SourceMap(
        packages=sorted(sizes, key=lambda size: -size.lines),
        chain=_longest_chain({module.name: module.imports(known, top=True) for module in modules}),
        crossed_types=sorted(_crossed(modules, imports)),
        duplicate_modules=_repeated(stems),
        duplicate_classes=_repeated(classes),
    )


def describe(source: SourceMap) -> Iterator[str]:
    """The lines of the table, the longest chain and what occurs twice."""
    yield f"{'package':<12}  files   lines  lines/file  functions  classes  imports/file"
    for size in (*source.packages, _total(source.packages)):
        yield (
            f"{size.package:<12}{size.files:>7}{size.lines:>8}{size.lines / size.files:>12.0f}"
            f"{size.functions:>11}{size.classes:>9}{size.imports_per_file:>14.1f}"
        )
    yield f"longest import chain, {len(source.chain)} files: {' > '.join(_short(name) for name in source.chain)}"
    yield f"types between request and token: {len(source.crossed_types)} ({', '.join(source.crossed_types)})"
    for title, repeated in (("module", source.duplicate_modules), ("class", source.duplicate_classes)):
        yield f"{title} names that occur twice or more: {len(repeated)}"
        yield from (f"  {name}: {', '.join(map(_short, places))}" for name, places in repeated.items())


def main(arguments: Sequence[str] | None = None, *, source: Path = SOURCE, package: str = PACKAGE) -> int:
    """Print the map; with `--check` the exit code is 1 where a name occurs twice."""
    parser = argparse.ArgumentParser(prog="python -m tools.map", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit code 1 where a module or class name occurs twice")
    options = parser.parse_args(arguments)
    found = draw(read_modules(source, package))
    print("\n".join(describe(found)))
    print(json.dumps({**asdict(found), "total": asdict(_total(found.packages))}))
    if options.check and found.duplicates:
        names = ", ".join((*found.duplicate_modules, *found.duplicate_classes))
        print(f"gamaneh: every module and class name must occur once in {package}, got twice: {names}", file=sys.stderr)
        return EXIT_DUPLICATES
    return 0


def _read(path: Path, source: Path) -> Module:
    parts = path.relative_to(source).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Module(name, path, text, ast.parse(text, str(path)))


def _imported(node: ast.AST, known: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name if name in known else node.module for name in inner if name in known or node.module in known)


def _size(name: str, modules: Sequence[Module], imports: Mapping[str, set[str]]) -> PackageSize:
    return PackageSize(
        package=name,
        files=len(modules),
        lines=sum(module.lines for module in modules),
        functions=sum(module.functions for module in modules),
        classes=sum(len(module.classes) for module in modules),
        imports_per_file=statistics.fmean(len(imports[module.name]) for module in modules),
    )


def _total(sizes: Sequence[PackageSize]) -> PackageSize:
    files = sum(size.files for size in sizes)
    return PackageSize(
        package="all",
        files=files,
        lines=sum(size.lines for size in sizes),
        functions=sum(size.functions for size in sizes),
        classes=sum(size.classes for size in sizes),
        imports_per_file=sum(size.imports_per_file * size.files for size in sizes) / files,
    )


def _longest_chain(imports: Mapping[str, set[str]]) -> list[str]:
    """Imports at the top of modules have no cycles, or Python could not run them."""
    chains: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in chains:
            chains[name] = []  # a package and a module of it may name each other
            following = (chain(other) for other in sorted(imports[name]))
            chains[name] = [name, *max(following, key=len, default=[])]
        return chains[name]

    return max((chain(name) for name in sorted(imports)), key=len, default=[])


def _crossed(modules: Sequence[Module], imports: Mapping[str, set[str]]) -> set[str]:
    """Names of this project's classes in the annotations of the engine's modules behind `ENTRY`."""
    by_name = {module.name: module for module in modules}
    classes = {name for module in modules for name in module.classes if not name.startswith("_")}
    inside = ENTRY.rpartition(".")[0]
    reached, waiting = set[str](), [ENTRY] if ENTRY in by_name else []
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting += [other for other in imports[name] if other.startswith(inside) and other not in reached]
    named = {name for module in reached for name in _annotated(by_name[module].tree)}
    return named & classes


def _annotated(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        notes = (getattr(node, "annotation", None), getattr(node, "returns", None))
        for note in notes:
            if isinstance(note, ast.expr):
                yield from (part.id for part in ast.walk(note) if isinstance(part, ast.Name))


def _repeated(named: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    counts = Counter(name for name, _ in named)
    return {name: [place for at, place in named if at == name] for name in sorted(counts) if counts[name] > 1}


def _short(name: str) -> str:
    return name.partition(".")[2] or name


if __name__ == "__main__":
    sys.exit(main())
