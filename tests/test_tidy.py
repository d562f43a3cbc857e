"""Rules that linters do not know: imports, limits, docstrings, sources.

A failing test lists every finding as one line, `file:line: what is wrong`. Change a rule here if it is in the
way of clear code.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from sluice import gateway
from tests.rooms import statements_of, tree_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("datastream", "gateway", "publishers")
CODE = (*PACKAGES, "tests", "benchmarks")
GENERATED = "gateway/api/"
MAY_IMPORT_OURS = re.compile(
    rf"(?m)^\s*(?:from \.|(?:from|import) (?:[\w., ]*[, ])?(?:{'|'.join(PACKAGES)})\b)"
)

# Pure modules do no I/O; clock, randomness, disk and network come in by argument. A pattern has to match at
# least one module. A module whose docstring says "Pure" is checked, too.
PURE = (
    "datastream/layout.py",
    "datastream/protocol/commands.py",
    "datastream/file/recovery.py",
    "gateway/blocks/items.py",
    "gateway/blocks/merkle.py",
    "gateway/blocks/root_hash.py",
    "gateway/blocks/block.py",
    "gateway/blocks/stream_layout.py",
    "gateway/blocks/chain.py",
    "gateway/blocks/refusal.py",
    "gateway/limits.py",
    "gateway/errors.py",
    "gateway/addresses.py",
    "gateway/blocks/proofs/*.py",
    "gateway/race/*.py",
    "gateway/services/block_messages.py",
    "gateway/cluster/catch_up.py",
    "gateway/node/rules.py",
    "gateway/node/grpc_engine.py",
    "gateway/pipeline/replication_quorum.py",
    "gateway/services/subscriber_state.py",
    "gateway/services/subscription_client.py",
    "publishers/blocks/block_layouts.py",
    "publishers/protocol/machine*.py",
    "publishers/blocks/maker.py",
    "publishers/blocks/block_items.py",
    "publishers/blocks/linking.py",
)
PURE_CLAIM = re.compile(r"\bPure( values)?[.:;]")
IMPURE_IMPORTS = frozenset(
    {
        *("grpc", "socket", "asyncio", "threading", "os", "time", "pyspark"),
        *("aiohttp", "click", "concurrent", "http", "logging", "mmap", "multiprocessing", "plyvel", "select"),
        *("selectors", "shutil", "ssl", "subprocess", "tempfile", "urllib", "uvloop"),
    }
)
IMPURE_CALLS = frozenset({"input", "open"})

# Arrows point one way: publishers -> gateway -> datastream.
DATASTREAM_DEPENDS_ON = frozenset({"blake3", "google_crc32c", "plyvel", "plyvel_next", "uvloop"})
DATASTREAM_MAY_IMPORT = DATASTREAM_DEPENDS_ON | {"datastream"} | sys.stdlib_module_names

GATEWAY_MAY_NOT_IMPORT = frozenset({"publishers", "pyspark", "pandas", "pyarrow"})
SPARK_MODULES = frozenset({"pyspark", "py4j"})
SPARK_ROOMS = ("publishers/spark/", "publishers/job/")
SPARK_ROOMS_INSIDE_FUNCTIONS = ("publishers/commands/",)

ROOT_NAMES = frozenset(
    {
        *(".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
        *("benchmarks", "datastream", "deploy", "docs", "gateway", "proto", "publishers", "pyproject.toml"),
        *(f"pyspark_{name}.py" for name in ("blockfiles", "blockstream", "datastream")),
        "sluice",
        "tests",
    }
)
# In two halves, or this file would be its own first finding.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me|Us" + r"ers|tm" + r"p)/\w")


@cache
def repository_files() -> tuple[str, ...]:
    """Return the paths of all files that are, or would be, in the repository."""
    # In a container the clone may belong to another user, which git refuses otherwise.
    words = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
    command = [*words, "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(path for path in set(listed.split("\0")) if path and (ROOT / path).is_file()))


def python_files(*folders: str) -> list[str]:
    """Return the hand-written Python modules in the folders."""
    return [
        path
        for path in repository_files()
        if path.endswith(".py") and path.split("/")[0] in folders and not path.startswith(GENERATED)
    ]


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def imports_of(path: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, absolute dotted name and "inside a function" of every import.

    Names of our packages come without `sluice.`.
    """
    for line, name, is_inside in _imports_of(path):
        yield line, name.removeprefix("sluice."), is_inside


@cache
def _imports_of(path: str) -> tuple[tuple[int, str, bool], ...]:
    package = path.split("/")[:-1]
    found = []
    nodes: list[tuple[ast.AST, bool]] = [(tree_of(path), False)]
    while nodes:
        node, is_inside = nodes.pop()
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, is_inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append((node.lineno, module, is_inside))
        elif not isinstance(node, ast.expr):  # which has no import in it
            is_inside = is_inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            nodes += [(child, is_inside) for child in ast.iter_child_nodes(node)]
    return tuple(sorted(found))


def expect_none(findings: Iterable[str]) -> None:
    found = sorted(findings)
    assert not found, "\n".join([f"{len(found)} findings", *found])


# --- imports ------------------------------------------------------------------------------------------------


def pure_files() -> list[str]:
    listed = {str(path.relative_to(ROOT)) for pattern in PURE for path in ROOT.glob(pattern)}
    claims = {
        path for path in python_files(*PACKAGES) if PURE_CLAIM.search(ast.get_docstring(tree_of(path)) or "")
    }
    return sorted(listed | claims)


def test_every_pure_module_exists() -> None:
    expect_none(f"{pattern}:1: no such module" for pattern in PURE if not any(ROOT.glob(pattern)))


def test_pure_modules_do_no_io() -> None:
    findings = []
    for path in pure_files():
        for line, name, _ in imports_of(path):
            if name.split(".")[0] in IMPURE_IMPORTS:
                findings.append(f"{path}:{line}: a pure module imports {name}")
        for node in ast.walk(tree_of(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in IMPURE_CALLS
            ):
                findings.append(f"{path}:{node.lineno}: a pure module calls {node.func.id}")
    expect_none(findings)


def test_the_data_streamer_stands_alone() -> None:
    expect_none(
        f"{path}:{line}: datastream imports {name}; it may import {', '.join(sorted(DATASTREAM_DEPENDS_ON))} "
        "and the standard library"
        for path in python_files("datastream")
        for line, name, _ in imports_of(path)
        if name.split(".")[0] not in DATASTREAM_MAY_IMPORT
    )


def test_our_packages_are_imported_under_sluice() -> None:
    """A package that is imported under another name is there twice, with classes that are not the same."""
    expect_none(
        f"{path}:{line}: imports {name}; expected sluice.{name}"
        for path in python_files("sluice", *CODE)
        if MAY_IMPORT_OURS.search(text_of(path))  # parsing all takes ten times as long
        for line, name, _ in _imports_of(path)
        if name.split(".")[0] in PACKAGES
    )


def test_the_gateway_does_not_know_the_publishers() -> None:
    expect_none(
        f"{path}:{line}: gateway imports {name}; arrows point publishers -> gateway -> datastream"
        for path in python_files("gateway")
        for line, name, _ in imports_of(path)
        if name.split(".")[0] in GATEWAY_MAY_NOT_IMPORT
    )


def test_spark_stays_in_its_rooms() -> None:
    expect_none(
        f"{path}:{line}: imports {name}; Spark belongs to {', '.join(SPARK_ROOMS)}, and inside functions to "
        + ", ".join(SPARK_ROOMS_INSIDE_FUNCTIONS)
        for path in python_files(*PACKAGES)
        for line, name, is_inside in imports_of(path)
        if name.split(".")[0] in SPARK_MODULES
        and not path.startswith(SPARK_ROOMS)
        and not (is_inside and path.startswith(SPARK_ROOMS_INSIDE_FUNCTIONS))
    )


# --- limits -------------------------------------------------------------------------------------------------


def limits_of(package: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name and "has its reason below it" of every limit of a package."""
    body = tree_of(f"{package}/limits.py").body
    for node, following in zip(body, [*body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id not in ("__all__", "MIB"):
            has_reason = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            yield node.lineno, target.id, has_reason


def names_in(path: str) -> Iterator[str]:
    """Yield the names in code, and its texts, which may name what a test replaces."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.split(".")[-1]
        elif isinstance(node, ast.keyword) and node.arg:  # `StreamLimits` has a field for each limit
            yield node.arg.upper()


def test_every_limit_has_a_reason() -> None:
    expect_none(
        f"{package}/limits.py:{line}: {name} does not say why it is what it is"
        for package in PACKAGES
        for line, name, has_reason in limits_of(package)
        if not has_reason
    )


def test_every_limit_that_refuses_cuts_or_forgets_is_in_a_test() -> None:
    """A reader has to see that the test really goes one past it."""
    untested = {
        name: f"{package}/limits.py:{line}: no test names {name}; one has to reach it, and go one past it"
        for package in PACKAGES
        for line, name, _ in limits_of(package)
        if {"MAX", "MIN", "KEPT"} & set(name.split("_"))
    }
    for path in python_files("tests"):
        if path.split("/")[-1].startswith("test_") and not path.endswith("/test_limits.py"):
            text = text_of(path).upper()
            if any(name in text for name in untested):  # else it is not worth parsing
                for name in names_in(path):
                    untested.pop(name, None)
    expect_none(untested.values())


# --- words --------------------------------------------------------------------------------------------------


def undocumented(path: str, node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    """Yield a finding for each public class, function and method below `node` that has no docstring."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name.startswith("_") or is_further_definition(child):
                continue
            if ast.get_docstring(child) is None:
                yield f"{path}:{child.lineno}: {prefix}{child.name} has no docstring"
            if isinstance(child, ast.ClassDef):
                yield from undocumented(path, child, f"{prefix}{child.name}.")


def is_further_definition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether the name is documented elsewhere: an overload, a setter, a marked override."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"overload", "setter", "deleter", "override"})


def test_every_public_name_has_a_docstring() -> None:
    findings = []
    for path in python_files(*CODE):
        if text_of(path) and not text_of(path).startswith('"""'):
            findings.append(f"{path}:1: the module has no docstring")
        if path.split("/")[0] in PACKAGES:
            findings.extend(undocumented(path, tree_of(path)))
    expect_none(findings)


def test_no_bare_class_is_raised() -> None:
    findings = []
    for path in python_files(*PACKAGES):
        for node in statements_of(path):
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                name = raised.id if isinstance(raised, ast.Name) else ""
                if name in ("Exception", "BaseException"):
                    findings.append(
                        f"{path}:{node.lineno}: raises {name}; raise a class that says whose fault"
                    )
                elif name in BUILTIN_ERRORS and raised is node.exc:
                    findings.append(f"{path}:{node.lineno}: raises {name} without saying what was got")
    expect_none(findings)


BUILTIN_ERRORS = frozenset(
    {"AssertionError", "KeyError", "OSError", "RuntimeError", "TypeError", "ValueError"}
)


def test_no_public_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = {}
    for path in python_files(*PACKAGES):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    expect_none(f"{places[0]}: {name} is also in {places[1]}" for name, places in homes.items() if places[1:])


def test_no_path_of_one_machine() -> None:
    findings = []
    for path in repository_files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        for number, line in enumerate(text.splitlines(), start=1):
            if match := MACHINE_PATH.search(line):
                findings.append(f"{path}:{number}: names a path of one machine, {match[0]}…")
    expect_none(findings)


# --- sources ------------------------------------------------------------------------------------------------

SOURCE = re.compile(r"(?:^|(?<=\s))Source: (.+?)(?:\.(?=\s+[A-Z]|\s*\Z)|\n\s*\n|\Z)", re.DOTALL)
PUBLIC_SOURCES = re.compile(
    r"\b(?:RFC|HIP-|EIP-|CVE-|NIST SP|draft-irtf-) ?\w+"  # by number
    r"|\b(?:POSIX|APPNOTE\.TXT|protobuf\.dev|hiero-block-node|hiero-consensus-node|zkevm-data-streamer|LevelDB|etcd)\b"
    r"|\bLinux, Documentation/"
    r"|\bgRPC (?:protocol over HTTP/2|over HTTP/2|health checking protocol)\b"
    r"|\bGuide to Elliptic Curve Cryptography\b|\b[a-z]\w+\([1-8]\)"  # a book; manual pages
    r"|^[A-Z][a-z]+[^;]* \(?(?:19|20)\d\d\b"  # a paper: authors, year
)
PAGE_NAMED = re.compile(r"(?<![\w/.-])((?:\.\./)*(?:[\w-]+/)*[\w-]+\.(?:md|py|proto))\b")
SPEC_SECTION = re.compile(
    r"\b([\w-]+)\.md`?(?:\]\([^)]*\))?,? (?:sections? )?((?:\d+(?:\.\d+)*(?:, | and |,? to )?)+)"
)


@cache
def headings_of(page: str) -> frozenset[str]:
    """Return the headings of a page, and the numbers that they begin with."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"(?m)^#+ ((\d+(?:\.\d+)*)?.*)$", text)
    return frozenset(part for both in found for part in both)


def docstrings() -> Iterator[tuple[str, int, str]]:
    """Yield path, line and text of every docstring in files with a source."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in python_files(*CODE):
        if "Source:" not in text_of(path):
            continue
        for node in statements_of(path):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield path, getattr(node, "lineno", 1), text


def unresolved(source: str) -> Iterator[str]:
    """Yield the missing pages, headings and sections that a source names."""
    named = PAGE_NAMED.search(source)
    if named is None:
        if not PUBLIC_SOURCES.search(source):
            yield f"{source!r} is neither a page of the repository nor a public specification"
        return
    page, rest = named[1], re.sub(r"\([^)]*\)", "", source[named.end() :])
    if page not in repository_files():
        if not PUBLIC_SOURCES.search(source):
            yield f"{page} is not in the repository"
    elif page.endswith(".md"):
        for heading in re.findall(r'"([^"]+)"', rest):
            if heading not in headings_of(page):
                yield f"{page} has no heading {heading!r}"
        for number in re.findall(r"(?<= )\d+(?:\.\d+)*", rest):
            if number not in headings_of(page):
                yield f"{page} has no section {number}"


def test_every_source_is_in_the_repository_or_public() -> None:
    sources = [
        (path, line, " ".join(source.split()))
        for path, line, text in docstrings()
        for found in SOURCE.findall(text)
        for source in re.split(r";\s", found)
    ]
    assert len(sources) > 200
    expect_none(
        f"{path}:{line}: {finding}" for path, line, source in sources for finding in unresolved(source)
    )


def test_every_page_that_is_named_is_there() -> None:
    """In code, comments and pages; for the specification also every section."""
    names = {path.split("/")[-1] for path in repository_files()}
    spec = {path.split("/")[-1]: path for path in repository_files() if path.startswith("docs/spec/")}
    findings = []
    for path in repository_files():
        if not path.endswith((".md", ".proto", ".py", ".pyi", ".toml")) or path == "tests/test_tidy.py":
            continue
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1):
            if ".md" not in line:
                continue
            for page in re.findall(r"[\w-]+\.md\b", line):
                if page not in names and not PUBLIC_SOURCES.search(line):
                    findings.append(f"{path}:{number}: {page} is not in the repository")
            for name, numbers in SPEC_SECTION.findall(line):
                page = spec.get(f"{name}.md", "")
                for section in re.findall(r"\d+(?:\.\d+)*", numbers) if page else ():
                    if section not in headings_of(page):
                        findings.append(f"{path}:{number}: {page} has no section {section}")
    expect_none(findings)


# --- the repository -----------------------------------------------------------------------------------------


def test_the_root_is_fixed() -> None:
    names = {path.split("/")[0] for path in repository_files()}
    expect_none(f"{name}:1: does not belong in the root folder" for name in names - ROOT_NAMES)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == gateway.__version__
    assert f"## {gateway.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
