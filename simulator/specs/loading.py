"""Data files as frozen pydantic values: all that is wrong with a file in one message."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from simulator.errors import SpecError
from simulator.specs.extends import FileState, file_state, lineage, resolve
from simulator.specs.files import shown_path
from simulator.specs.folders import find_spec, is_path, name_of, searched_folders, spec_files, working_folder
from simulator.specs.messages import MISSING, explain, kind_of
from simulator.specs.toml_text import KeyPath, checked, key_lines, read_text

__all__ = [
    "Count",
    "ExtendingSpec",
    "Listed",
    "Name",
    "NamedSpec",
    "Names",
    "Spec",
    "files_as_they_are",
    "load_all",
    "load_named",
    "load_spec",
    "together",
    "validate_spec",
]

_MAX_ERRORS = 30
_MANY = 4
"""Missing keys of a file that may extend another from which on that is the way out."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
"""Text that is not empty."""
Count = Annotated[int, Field(ge=1, le=10**9)]
"""A whole number, written as one: no "8", no 8.0, no true."""
Listed = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""A list of a file for a field that is a tuple."""
Names = Annotated[tuple[Name, ...], Listed]
"""A list of names."""

S = TypeVar("S", bound=BaseModel)


class Spec(BaseModel):
    """Base of everything read from a file: frozen, no unknown keys, no conversions, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class MadeSpec(Spec):
    """A spec that programs make, too: what is wrong with it is then told as of a file."""

    @model_validator(mode="wrap")
    @classmethod
    def _told(cls, data: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Of a file, which comes with a context, the place is known further up."""
        try:
            return handler(data)
        except ValidationError as error:
            if info.context is not None:
                raise
            raise _in_words(error, cls, cls.__name__) from None


class NamedSpec(Spec):
    """A data file: its name, other names it answers to, and where each number was read (key "*" = all others)."""

    name: Name
    aliases: Names = ()
    sources: dict[str, str] = {}
    notes: str | None = None

    def __hash__(self) -> int:
        return hash((type(self), self.name))


class ExtendingSpec(NamedSpec):
    """A data file that may extend another of its kind: what it does not say is as there (see `simulator.specs.extends`)."""

    extends: Name | None = None


def load_spec(path: Path | str, cls: type[S], kind: str | None = None) -> S:
    """Return the file's content as a `cls`; files already read and unchanged since are not read again.

    Args:
        path: the file.
        cls: the pydantic class that holds the rules.
        kind: the kind of data file; one that is an `ExtendingSpec` is then read with those that it extends.

    Raises:
        SpecError: the file, or one that it extends, cannot be read or is wrong; the message lists all its errors, with line and key.
    """
    files = lineage(path, kind) if kind and issubclass(cls, ExtendingSpec) else (file_state(path),)
    return _load(files, cls)  # type: ignore[return-value]


@functools.lru_cache(maxsize=1024)
def _load(files: tuple[FileState, ...], cls: type[BaseModel]) -> BaseModel:
    if len(files) > 1:
        _load(files[1:], cls)  # what is wrong with an extended file is told at its own place
    return _validate(resolve(files).data, cls, shown_path(files[0].path), True, read_text(files[0].path))


def validate_spec(
    data: Mapping[str, object], cls: type[S], place: str, from_file: bool = True, given: Collection[KeyPath] = ()
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
        raise SpecError(f"{place}: expected a table of keys, got {kind_of(data)}")
    return _validate(checked(data, place), cls, place, from_file, None, given)


def _validate(
    data: Mapping[str, object],
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
            text = read_text(place)
        told = _in_words(error, cls, place, text or "", given)
        lacks = sum(item["type"] == "missing" for item in error.errors(include_url=False))
    if lacks >= _MANY and issubclass(cls, ExtendingSpec) and "extends" not in data:
        raise SpecError(f'{told}\n{place}: Way out: extends = "..." with a file of its kind that says the rest')
    raise told


def _in_words(
    error: ValidationError, cls: type[BaseModel], place: str, text: str = "", given: Collection[KeyPath] = ()
) -> SpecError:
    """All that is wrong, in the order of the lines of a text."""
    lines = key_lines(text)
    found = [explain(item, cls, place, lines, given) for item in error.errors(include_url=False)]
    messages = _joined(sorted(found, key=lambda one: one[0]))
    more = [f"... and {len(messages) - _MAX_ERRORS} more"] if len(messages) > _MAX_ERRORS else []
    return SpecError("\n".join(messages[:_MAX_ERRORS] + more))


def _joined(found: Iterable[tuple[int, str, str]]) -> list[str]:
    """One message per value: of one that may be of several kinds, the rule of each; and one per place that lacks keys."""
    rules: dict[str, dict[str, None]] = {}
    for _, said, rule in found:
        rules.setdefault(said, {})[rule] = None
    return [
        f"{said}{'s' if len(some) > 1 else ''} {_some(list(some))}"
        if said.endswith(MISSING)
        else f"{said}: {'; or '.join(some)}"
        if any(some)
        else said
        for said, some in rules.items()
    ]


def _some(keys: list[str]) -> str:
    more = len(keys) - _MAX_ERRORS
    return ", ".join(keys[:_MAX_ERRORS]) + (f" and {more} more" if more > 0 else "")


def together(*checks: Callable[[], object]) -> None:
    """Run all of these, so that a user hears of all that is wrong at once.

    Raises:
        SpecError: some of them raise one; the message is that of each.
    """
    wrong = []
    for check in checks:
        try:
            check()
        except SpecError as error:
            wrong.append(str(error))
    if wrong:
        raise SpecError("\n".join(wrong))


def load_named(kind: str, name: str | Path, cls: type[S]) -> S:
    """Return the data file of this kind and name as a `cls`; see `find_spec` and `load_spec` for what is raised.

    What was found is given again as long as neither the files nor the folders in which they were looked for have changed.
    """
    name = name_of(name)
    key, checked = (kind, name, cls, working_folder()), _CHECKED.get()
    known = _FOUND.get(key)
    if known and (key in checked or all(_changed(path) == then for path, then in known[1])):
        if checked is not _NONE:
            checked.add(key)
        return known[0]  # type: ignore[return-value]
    path = find_spec(kind, name)
    files = lineage(path, kind) if issubclass(cls, ExtendingSpec) else (file_state(path),)
    folders = {*searched_folders(kind), *(os.path.dirname(file.path) for file in files)}
    watched = [*folders, *(file.path for file in files)]
    seen = tuple([(path, _changed(path)) for path in watched])
    spec: S = _load(files, cls)  # type: ignore[assignment]
    if not is_path(name):
        _check_name(path, spec)
    if len(_FOUND) >= _MOST_FOUND:
        _FOUND.clear()
    _FOUND[key] = spec, seen
    return spec


def _check_name(path: Path, spec: BaseModel) -> None:
    """Refuse a file found by its own name that bears another's inside: a copy, of which answers would say that it is the first.

    Raises:
        SpecError: it does; a file that is asked for by its path may be called as it likes.
    """
    if isinstance(spec, NamedSpec) and spec.name != path.stem:
        raise SpecError(
            f'{shown_path(path)}: name = "{spec.name}", but the file is called {path.name}, by which it is found. Way out: name = '
            f'"{path.stem}"'
        )


@contextmanager
def files_as_they_are() -> Iterator[None]:
    """Take data files as they are when they are first asked for in here, or around here: who asks ten thousand times is answered of one
    state of them."""
    if _CHECKED.get() is not _NONE:
        yield
        return
    token = _CHECKED.set(set())
    try:
        yield
    finally:
        _CHECKED.reset(token)


_NONE: set[Any] = set()
_CHECKED: ContextVar[set[Any]] = ContextVar("files that nobody looks at again", default=_NONE)
_MOST_FOUND = 1024
_FOUND: dict[
    tuple[str, str, type[BaseModel], str], tuple[BaseModel, tuple[tuple[str, tuple[int, int] | None], ...]]
] = {}
"""What `load_named` found, and when the files and folders that it looked at were changed."""


def _changed(path: str) -> tuple[int, int] | None:
    """When a file or folder was changed [ns] and how large it is [B]; None where there is none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_mtime_ns, info.st_size


def load_all(kind: str, cls: type[S]) -> dict[str, S]:
    """Return every data file of a kind, by name.

    Raises:
        SpecError: some are wrong; all errors of all files in one message.
    """
    found, errors = {}, []
    for name, path in sorted(spec_files(kind).items()):
        try:
            found[name] = load_spec(path, cls, kind)
        except SpecError as error:
            errors.append(str(error))
    if errors:
        raise SpecError("\n".join(errors))
    return found
