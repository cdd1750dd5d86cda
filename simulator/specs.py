"""Data files: TOML in, frozen pydantic values out, and messages that say where and what to write instead.

A *kind* is a folder of data files ("gpus", "clusters", "models", ...); a *name* is a file's stem.  A name is looked up
in the working directory first, then in the data that came with the package: a user's own file needs no installation.

    >>> find_spec("gpus", "A100-80GB-SXM").name
    'a100_80gb_sxm.toml'
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simulator.errors import SpecError, UnknownNameError, nearest

__all__ = [
    "KINDS",
    "Count",
    "Name",
    "NamedSpec",
    "Names",
    "Spec",
    "data_roots",
    "find_spec",
    "key_lines",
    "load_all",
    "load_named",
    "load_spec",
    "names",
    "read_toml",
    "validate_spec",
]

KINDS = {
    "gpus": ("hardware_specs", "GPU"),
    "links": ("hardware_specs", "link"),
    "nodes": ("hardware_specs", "node"),
    "clusters": ("hardware_specs", "cluster"),
    "calibrations": ("hardware_specs", "calibration"),
    "frameworks": ("hardware_specs", "framework"),
    "models": ("workloads", "model"),
    "jobs": ("workloads", "job"),
    "published": ("workloads", "published table"),
}
"""Kind -> (top folder, the word for one of them)."""

_MAX_FILE = 2**20
_MAX_ERRORS = 30
_KEY = r"(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)"
_KEY_LINE = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=\s*(.*)")
_TABLE_LINE = re.compile(rf"\s*(\[\[?)\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]")
_STRINGS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|#.*")
_ALIASES = re.compile(r"^aliases\s*=\s*\[([^\]]*)\]", re.MULTILINE)

Name = Annotated[str, Field(min_length=1, max_length=200)]
"""Text that is not empty."""
Count = Annotated[int, Field(ge=1, le=10**9)]
"""A whole number, written as one: no "8", no 8.0, no true."""
Names = Annotated[tuple[Name, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
"""A list of names."""

S = TypeVar("S", bound=BaseModel)
KeyPath = tuple[str | int, ...]


class Spec(BaseModel):
    """Base of everything read from a file: frozen, no unknown keys, no conversions, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NamedSpec(Spec):
    """A data file: its name, other names it answers to, and where each number was read (key "*" = all others)."""

    name: Name
    aliases: Names = ()
    sources: dict[str, str] = {}
    notes: str | None = None

    def __hash__(self) -> int:
        return hash((type(self), self.name))


def load_spec(path: Path | str, cls: type[S]) -> S:
    """Return the file's content as a `cls`; files already read and unchanged since are not read again.

    Raises:
        SpecError: the file cannot be read or is wrong; the message lists all its errors, with line and key.
    """
    try:
        info = os.stat(path)
    except (OSError, ValueError) as error:
        raise SpecError(f"{_shown(path)}: cannot be read ({_reason(error)})") from None
    return _load(os.path.abspath(path), info.st_mtime_ns, info.st_size, cls)  # type: ignore[return-value]


@functools.lru_cache(maxsize=1024)
def _load(path: str, changed: int, size: int, cls: type[BaseModel]) -> BaseModel:
    text = _read_text(path)
    return _validate(_parse(text, path), cls, _shown(path), True, text)


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the file's content as a dict, not yet checked against any rule.

    Raises:
        SpecError: no file, a directory, no text, too large, or no TOML (with the line).
    """
    return _parse(_read_text(path), path)


def validate_spec(
    data: Mapping[str, Any], cls: type[S], place: str, from_file: bool = True, given: Collection[KeyPath] = ()
) -> S:
    """Return `data` as a `cls`.

    Args:
        data: what a file or a command line said.
        cls: the pydantic class that holds the rules.
        place: where it was said; when it is the path of a text file, the messages give its lines.
        from_file: quantities must be written with their units; False also takes plain SI numbers.
        given: keys that --set gave: messages about them name it, not the file.

    Raises:
        SpecError: all errors at once.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"{place}: expected a table of keys, got {_kind_of(data)}")
    return _validate(data, cls, place, from_file, None, given)


def _validate(
    data: Mapping[str, Any],
    cls: type[S],
    place: str,
    from_file: bool,
    text: str | None,
    given: Collection[KeyPath] = (),
) -> S:
    try:
        return cls.model_validate(data, context={"from_file": from_file})
    except ValidationError as error:
        if text is None and os.path.isfile(place):
            text = _read_text(place)
        lines = key_lines(text or "")
        found = [_explain(item, cls, place, lines, given) for item in error.errors(include_url=False)]
    messages = [message for _, message in sorted(found, key=lambda pair: pair[0])]
    more = [f"... and {len(messages) - _MAX_ERRORS} more"] if len(messages) > _MAX_ERRORS else []
    raise SpecError("\n".join(messages[:_MAX_ERRORS] + more))


def load_named(kind: str, name: str, cls: type[S]) -> S:
    """Return the data file of this kind and name as a `cls`; see `find_spec` and `load_spec` for what is raised."""
    return load_spec(find_spec(kind, name), cls)


def load_all(kind: str, cls: type[S]) -> dict[str, S]:
    """Return every data file of a kind, by name.

    Raises:
        SpecError: some are wrong; all errors of all files in one message.
    """
    found, errors = {}, []
    for name, path in sorted(_files(kind).items()):
        try:
            found[name] = load_spec(path, cls)
        except SpecError as error:
            errors.append(str(error))
    if errors:
        raise SpecError("\n".join(errors))
    return found


def data_roots() -> list[Path]:
    """Return the folders that may hold `hardware_specs` and `workloads`: the working directory, the package's own."""
    package = Path(__file__).resolve().parent
    installed = package / "_data"
    own = installed if installed.is_dir() else package.parent
    here = Path.cwd()
    return [own] if here.resolve() == own else [here, own]


def names(kind: str) -> list[str]:
    """Return the names of all data files of a kind, in alphabetical order.

    Raises:
        UnknownNameError: no such kind.
    """
    return sorted(_files(kind))


def find_spec(kind: str, name: str) -> Path:
    """Return the path of a data file, by name or alias; case, "-", "_", "." and spaces do not matter.

    A name that ends in .toml or holds a path separator is a path.

    Raises:
        SpecError: the path does not exist.
        UnknownNameError: nobody bears the name; the nearest known one is offered.
        SpecError: the name is known, but not what bears it (such as a model whose shape was never published).
    """
    if name.lower().endswith(".toml") or "/" in name or os.sep in name:
        path = Path(name).expanduser()
        if not os.path.exists(path):
            raise SpecError(f"{name[:200]}: no such file")
        return path
    files = _files(kind)
    if name in files:
        return files[name]
    plain = _plain(name)
    for known, path in files.items():
        if plain and _plain(known) == plain:
            return path
    for path in files.values():
        match = _ALIASES.search(path.read_text(encoding="utf-8", errors="replace"))
        if match and plain and plain in {_plain(alias) for alias in re.findall(r"[\"']([^\"']*)[\"']", match.group(1))}:
            return path
    reason = _reasons(kind).get(plain)
    if reason:
        raise SpecError(
            f"{KINDS[kind][1]} {name[:100]!r} is known by name only: {reason}. Way out: your own file with a shape, or another "
            f"{KINDS[kind][1]}."
        )
    raise UnknownNameError(KINDS[kind][1], name[:100], files)


def _reasons(kind: str) -> dict[str, str]:
    """Names without a file, and why they have none (unknown_shapes.toml beside the folder of their kind)."""
    found: dict[str, str] = {}
    for root in data_roots():
        path = root / KINDS[kind][0] / "unknown_shapes.toml"
        if path.is_file():
            table = read_toml(path).get(kind, {})
            found |= {_plain(known): str(reason) for known, reason in table.items()}
    return found


def _files(kind: str) -> dict[str, Path]:
    if kind not in KINDS:
        raise UnknownNameError("kind of data file", kind, KINDS)
    found: dict[str, Path] = {}
    for root in data_roots():
        for path in sorted((root / KINDS[kind][0] / kind).glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def _plain(name: str) -> str:
    """Return a name without case and separators, but keep numbers apart: gpt3_1_3b is not gpt3_13b."""
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"(?<=[0-9])[^a-z0-9]+(?=[0-9])", "dot", name.lower()))


def _read_text(path: Path | str) -> str:
    place = _shown(path)
    if os.path.isdir(path):
        raise SpecError(f"{place}: is a directory; expected a TOML file")
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"{place}: cannot be read ({_reason(error)})") from None
    if len(raw) > _MAX_FILE:
        raise SpecError(f"{place}: is larger than 1 MiB; expected a small TOML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{place}: is no text file (byte {error.start} is not UTF-8); expected TOML") from None


def _parse(text: str, path: Path | str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        where, why = (f", line {match.group(2)}", match.group(1)) if match else ("", str(error))
        raise SpecError(f"{_shown(path)}{where}: is no TOML: {why}") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise SpecError(f"{_shown(path)}: is no TOML that can be read: {why}") from None


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line number of each key and table of a TOML text; best effort, for messages only.

    >>> key_lines('a = 1\\n[[run]]\\nb.c = "x"\\n')
    {('a',): 1, ('run', 0): 2, ('run', 0, 'b', 'c'): 3}
    """
    lines: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}
    table: KeyPath = ()
    depth, quote = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if quote:
            quote = "" if quote in line else quote
            continue
        key = _KEY_LINE.match(line) if depth == 0 else None
        header = _TABLE_LINE.match(line) if depth == 0 and not key else None
        if header:
            table = _table_path(_parts(header.group(2)), arrays, header.group(1) == "[[")
            lines.setdefault(table, number)
            continue
        if key:
            lines.setdefault(table + _parts(key.group(1)), number)
        rest = key.group(2) if key else line
        quote = next((q for q in ('"""', "'''") if rest.startswith(q) and q not in rest[3:]), "")
        if not quote:
            bare = _STRINGS.sub("", rest)
            depth = max(0, depth + sum(map(bare.count, "[{")) - sum(map(bare.count, "]}")))
    return lines


def _parts(dotted: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_KEY, dotted))


def _table_path(parts: KeyPath, arrays: dict[KeyPath, int], opens_item: bool) -> KeyPath:
    path: KeyPath = ()
    for i, part in enumerate(parts):
        path = (*path, part)
        if opens_item and i == len(parts) - 1:
            arrays[path] = arrays.get(path, -1) + 1
        if path in arrays:
            path = (*path, arrays[path])
    return path


def _explain(
    item: Any, cls: type[BaseModel], place: str, lines: dict[KeyPath, int], given: Collection[KeyPath] = ()
) -> tuple[int, str]:
    """Return (line, message) of one pydantic error."""
    at: KeyPath = tuple(part for part in item["loc"] if part != "[key]")
    line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), 0)
    where = f"{place}, line {line}" if line else place
    path = ".".join(map(str, at))
    kind, value = item["type"], item["input"]
    within = kind == "extra_forbidden" and any(key[: len(at)] == at for key in given)
    if within or any(at[:n] in given for n in range(1, len(at) + 1)):
        line, where = 0, "--set"
    if kind == "missing":
        return line, f"{where}: missing key {path}"
    if not at:
        return line, f"{where}: {_rule(item)}"
    if kind == "extra_forbidden":
        known = _keys_at(cls, at[:-1])
        guess = nearest(str(at[-1]), known)
        hint = f" Did you mean {guess}?" if guess else ""
        return line, f"{where}: {path} = {_brief(value)}: unknown key.{hint} Known: {', '.join(known)}"
    said = path if item["loc"][-1] == "[key]" else f"{path} = {_brief(value)}"
    return line, f"{where}: {said}: {_rule(item)}"


def _rule(item: Any) -> str:
    """Return what is allowed, from one pydantic error."""
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    got = f", got {_kind_of(value)}"
    texts = {
        "int_type": f"expected a whole number such as 8{got}",
        "int_from_float": f"expected a whole number such as 8{got}",
        "float_type": f"expected a number such as 1.5{got}",
        "string_type": f"expected text in quotes{got}",
        "bool_type": f"expected true or false{got}",
        "dict_type": f"expected a table{got}",
        "model_type": f"expected a table{got}",
        "list_type": f"expected a list in [ ]{got}",
        "tuple_type": f"expected a list in [ ]{got}",
        "finite_number": "expected a finite number",
        "string_too_short": "expected text that is not empty",
        "string_too_long": f"expected at most {context.get('max_length')} characters",
        "greater_than_equal": f"expected at least {context.get('ge')}",
        "greater_than": f"expected more than {context.get('gt')}",
        "less_than_equal": f"expected at most {context.get('le')}",
        "less_than": f"expected less than {context.get('lt')}",
        "literal_error": f"expected one of {str(context.get('expected')).replace(' or ', ', ')}",
        "value_error": str(context.get("error")),
    }
    return texts.get(kind, item["msg"].replace("Input should be", "expected"))


def _keys_at(cls: type[BaseModel], at: KeyPath) -> list[str]:
    """Return the keys allowed in the table at this path."""
    model = cls
    for part in at:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _kind_of(value: Any) -> str:
    for types, word in ((bool, "true or false"), (str, "text"), (int, "a whole number"), (float, "a fraction")):
        if isinstance(value, types):
            return word
    return (
        "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else "something else"
    )


def _brief(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1} digits"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _shown(path: Path | str) -> str:
    """Return a path as the user would write it: relative when it lies under the working directory."""
    try:
        return str(Path(os.path.abspath(path)).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
