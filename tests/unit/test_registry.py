"""Families of plug-ins: who writes a member meets one message, and no name is taken from another in silence."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.registry import Family

BASE = """
import abc


class Animal(abc.ABC):
    name: str
    aliases: tuple[str, ...] = ()

    @abc.abstractmethod
    def sound(self) -> str: ...
"""

MEMBER = """
from {package}.base import Animal


class {cls}(Animal):
    {name}
    {aliases}

    def sound(self) -> str:
        return "{cls}"
"""


def family(where: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, tuple[str, str]]) -> Family[object]:
    """A package with one member per file: file -> (line with its name, line with its aliases)."""
    package = f"animals_{where.name}"
    folder = where / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text(BASE)
    for stem, (name, aliases) in files.items():
        (folder / f"{stem}.py").write_text(
            MEMBER.format(package=package, cls=stem.title(), name=name or "pass", aliases=aliases or "pass")
        )
    monkeypatch.syspath_prepend(str(where))
    importlib.invalidate_caches()
    return Family("animal", package, "Animal")


def test_a_name_that_exists_is_refused_with_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a file whose name was left as it was does not stand in the place of the first."""
    animals = family(tmp_path, monkeypatch, {"cat": ('name = "cat"', ""), "tiger": ('name = "cat"', "")})
    with pytest.raises(SpecError, match=r"tiger\.Tiger: its name or alias 'cat' is one of .*cat\.Cat, too"):
        animals.get("cat")


def test_an_alias_that_exists_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters count, separators do not: auto_map and automap are one name."""
    animals = family(
        tmp_path, monkeypatch, {"cat": ('name = "cat"', 'aliases = ("big_cat",)'), "tiger": ('name = "bigcat"', "")}
    )
    with pytest.raises(SpecError, match=r"its name or alias 'big_?cat' is one of"):
        animals.get("cat")


def test_a_member_may_repeat_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias that is the name without its separators takes nothing from anybody."""
    animals = family(tmp_path, monkeypatch, {"big_cat": ('name = "big_cat"', 'aliases = ("bigcat",)')})
    assert animals.get("BIG-CAT") is animals.get("bigcat")


def test_a_member_without_a_name_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of an AttributeError from inside."""
    with pytest.raises(SpecError, match=r"tiger\.Tiger: every animal has a name\. Way out: name = "):
        family(tmp_path, monkeypatch, {"tiger": ("", "")}).get("cat")


def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the contributor's, and the message says in which file."""
    animals = family(tmp_path, monkeypatch, {"cat": ('name = "cat"', "")})
    (tmp_path / animals.package / "tiger.py").write_text("def f(:\n")
    sys.modules.pop(f"{animals.package}.tiger", None)
    with pytest.raises(SpecError, match=r"tiger\.py: cannot be loaded as animal: SyntaxError"):
        animals.get("cat")
