"""Shell scripts read, never run: variables, arrays and the commands that use them, word by word, each with its line.

Understood: assignments (`A=1`, `A+=" ..."`, `ARGS=( ... )`, `ARGS+=( ... )`, `export A=1`), quotes, comments, continued lines,
`$A`, `${A}`, `${A:-default}`, `${ARGS[@]}`, `$(( ... ))`, `sbatch << END`, and an `if` or `case` about values that are known.
Everything whose value only a run would tell ($1, $(command), variables of the environment) stays as it is and marks its word as
open.  Statements inside another `if` or `case`, a `for`, `while` or function are not followed: which of them run is not known.

    text --scan--> statements of words --Script--> variables, commands (expanded), statements that were not followed
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from simulator.errors import SpecError
from simulator.importers.arithmetic import whole_number
from simulator.importers.shell_branches import Branches
from simulator.importers.shell_words import ASSIGN, NAME, Raw, Scanner, Statement, end_of_dollar

__all__ = ["Command", "Script", "Word", "read_script"]

_MOST_TEXT = 2**20
_OPENERS = {"if", "for", "while", "until", "case", "select"}
_CLOSERS = {"fi", "done", "esac"}
_MIDDLE = {"then", "else", "elif", "do"}
_DECLARE = {"export", "declare", "local", "readonly", "typeset"}
_BRACED = re.compile(rf"({NAME}|[0-9]+)(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
_PLAIN = re.compile(NAME)
_UNKNOWN = re.compile(r"\$[A-Za-z_{(0-9@*#?]|`")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command after expansion.

    Args:
        note: where its value comes from, when that is a default of the script.
        open: whether part of it is known only when the script runs.
    """

    text: str
    line: int
    note: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words, and whether it stands inside an if, a loop or a function."""

    words: tuple[Word, ...]
    line: int
    inside: bool = False

    @property
    def text(self) -> str:
        """The command on one line."""
        return " ".join(word.text for word in self.words)


@dataclass(slots=True)
class Script:
    """What a script says.

    Args:
        commands: those that set no variable.
        variables: scalars and arrays, at their last assignment outside of branches.
        skipped: (line, text) of statements that were not followed.
        dead: (line, text) of statements behind a test that is known to fail.
        arrays, used: variables that are arrays, and those that something expands.
    """

    commands: list[Command] = field(default_factory=list)
    variables: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    dead: list[tuple[int, str]] = field(default_factory=list)
    arrays: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


def read_script(text: str, place: str, line: int = 1, known: dict[str, tuple[Word, ...]] | None = None) -> Script:
    """Return what a script says.

    Args:
        line: number of its first line.
        known: variables that are set before it starts.

    Raises:
        SpecError: a quote or array is not closed, or variables expand without end.
    """
    script = Script(variables=dict(known or {}))
    frames: list[Branches] = []
    tested, previous = False, Statement(line)
    for statement in Scanner(text, line, place).statements():
        first = statement.words[0].plain
        function = first == "function" or any(w.plain == "()" for w in statement.words[:2])
        if first in _OPENERS or first == "{" or function:
            frames.append(Branches(first if first in _OPENERS else "{", function and not _opens(statement)))
            if first == "if":
                frames[-1].test = _test(script, statement, place)
            if first == "case":
                frames[-1].subject = _subject(script, statement, place)
            if frames[-1].subject is not None:
                continue
            if frames[-1].test is None:
                script.skipped.append((statement.line, _said(statement)))
            continue
        if first == "{" and frames and frames[-1].waits:
            frames[-1].waits = False
            continue
        if first in _CLOSERS or first == "}":
            frames = frames[:-1]
            continue
        if first in _MIDDLE and frames:
            frames[-1].enter(first, _test(script, statement, place) if first == "elif" else None)
            statement.words.pop(0)
            if first == "elif" or not statement.words:
                continue
        elif frames and frames[-1].state == "test":
            frames[-1].test = None
            script.skipped.append((statement.line, _said(statement)))
            continue
        if frames and frames[-1].kind == "case" and (statement.pattern or first == ";;"):
            frames[-1].branch(first, statement.words[0].text.strip("\"'"))
            continue
        states = {frame.state for frame in frames}
        tested = statement.after == "||" or (
            bool(statement.after) and (tested or _said(previous).startswith(("[", "test ")))
        )
        previous = statement
        if "dead" in states:
            script.dead.append((statement.line, _said(statement)))
        elif first != ";;":
            _follow(script, statement, tested or "unknown" in states, place)
    return script


def _subject(script: Script, statement: Statement, place: str) -> str | None:
    """What a case is about; None when it is not known."""
    if len(statement.words) < 2:
        return None
    words = _expand(script, statement.words[1], place)
    return words[0].text if len(words) == 1 and not words[0].open else None


def _said(statement: Statement) -> str:
    return " ".join(word.text for word in statement.words) + ("( ... )" if statement.array is not None else "")


def _opens(statement: Statement) -> bool:
    return "{" in {word.plain for word in statement.words}


_COMPARED = {
    "=": "==",
    "==": "==",
    "-eq": "==",
    "!=": "!=",
    "-ne": "!=",
    "-gt": ">",
    "-ge": ">=",
    "-lt": "<",
    "-le": "<=",
}


def _test(script: Script, statement: Statement, place: str) -> bool | None:
    """Whether `[ a = b ]`, `[[ a -gt 1 ]]`, `[ -z a ]` or `[ -n a ]` holds; None when it is not known."""
    words = [out for raw in statement.words[1:] for out in _expand(script, raw, place)]
    texts = [word.text for word in words]
    if any(word.open for word in words) or len(texts) < 3 or (texts[0], texts[-1]) not in (("[", "]"), ("[[", "]]")):
        return None
    inner = texts[1:-1]
    if len(inner) == 2 and inner[0] in ("-z", "-n"):
        return (inner[1] == "") == (inner[0] == "-z")
    if len(inner) != 3 or inner[1] not in _COMPARED or re.search(r"[*?\[]", inner[2]):
        return None
    a, sign, b = inner[0], _COMPARED[inner[1]], inner[2]
    if sign in ("==", "!="):
        return (a == b) == (sign == "==")
    x, y = whole_number(a), whole_number(b)
    if x is None or y is None:
        return None
    return {">": x > y, ">=": x >= y, "<": x < y, "<=": x <= y}[sign]


def _follow(script: Script, statement: Statement, inside: bool, place: str) -> None:
    """Take an assignment or a command."""
    words = statement.words
    if words[0].plain in _DECLARE:
        words = [word for word in words[1:] if not word.text.startswith("-")]
        words = [word for word in words if ASSIGN.match(word.text)]
        if not words:
            return
    taken = 0
    for word in words:
        if not ASSIGN.match(word.text) or (word.pieces and word.pieces[0][1]):
            break
        taken += 1
    if inside and taken == len(words):
        script.skipped.append((statement.line, _said(statement)))
        return
    for word in words[:taken]:
        _assign(script, word, statement.array, place)
    if words[taken:]:
        expanded = [out for word in words[taken:] for out in _expand(script, word, place)]
        script.commands.append(Command(tuple(expanded), statement.line, inside))
        if statement.document is not None and expanded and expanded[0].text in ("sbatch", "bash", "sh"):
            inner = read_script(*statement.document[:1], place, statement.document[1], script.variables)
            script.commands += [replace(command, inside=inside or command.inside) for command in inner.commands]
            script.skipped += inner.skipped
            script.dead += inner.dead
            script.used |= inner.used


def _assign(script: Script, word: Raw, array: list[Raw] | None, place: str) -> None:
    match = ASSIGN.match(word.text)
    if match is None or match.group(2):
        script.skipped.append((word.line, word.text))
        return
    name, more = match.group(1), match.group(3) == "+"
    if array is not None:
        value = tuple(out for item in array for out in _expand(script, item, place))
        script.arrays.add(name)
    else:
        pieces = list(word.pieces)
        pieces[0] = (pieces[0][0][match.end() :], pieces[0][1])
        value = (_joined(script, pieces, word.line, place),)
    if more and name in script.variables:
        old = script.variables[name]
        if array is None and name not in script.arrays:
            text = old[0].text + value[0].text
            value = (replace(value[0], text=text, line=old[0].line, open=old[0].open or value[0].open),)
        else:
            value = old + value
    elif name in script.arrays and array is None:
        script.arrays.discard(name)
    if sum(len(w.text) for w in value) > _MOST_TEXT:
        raise SpecError(f"{place}, line {word.line}: {name} expands to more than a million characters")
    script.variables[name] = value


def _joined(script: Script, pieces: list[tuple[str, str]], line: int, place: str) -> Word:
    """All pieces of a word as one text, as on the right of an assignment."""
    out, note, is_open = "", "", False
    for text, quote in pieces:
        for part, _, part_note, part_open in _parts(script, text, quote, line, place):
            out, note, is_open = out + part, note or part_note, is_open or part_open
    return Word(out, line, note, is_open)


def _expand(script: Script, raw: Raw, place: str) -> list[Word]:
    """The words that a word becomes: variables outside of quotes are cut at blanks, arrays give a word per entry."""
    out: list[Word] = []
    now: Word | None = None
    for text, quote in raw.pieces:
        array = _array_of(script, text)
        if array is not None:
            out += ([now] if now else []) + (list(array) if quote else [w for word in array for w in _fields(word)])
            now = None
            continue
        for part, line, note, is_open in _parts(script, text, quote, raw.line, place):
            cut = quote == "" and part != text
            fields = re.split(r"(\s+)", part) if cut else [part]
            for piece in fields:
                if cut and piece.isspace():
                    line += piece.count("\n")
                    out += [now] if now else []
                    now = None
                elif piece or not cut:
                    unknown = is_open and bool(_UNKNOWN.search(piece))
                    now = (
                        Word(now.text + piece, now.line, now.note or note, now.open or unknown)
                        if now
                        else Word(piece, line, note, unknown)
                    )
    out += [now] if now else []
    if sum(len(word.text) for word in out) > _MOST_TEXT:
        raise SpecError(f"{place}, line {raw.line}: expands to more than a million characters")
    return out


def _fields(word: Word) -> list[Word]:
    """An entry of an array that is expanded outside of quotes, cut at its blanks."""
    return [replace(word, text=text) for text in word.text.split()] or [word]


def _array_of(script: Script, text: str) -> tuple[Word, ...] | None:
    match = re.fullmatch(rf"\$\{{({NAME})\[[@*]\]\}}", text)
    if match and match.group(1) in script.variables:
        script.used.add(match.group(1))
        return script.variables[match.group(1)]
    return None


def _parts(script: Script, text: str, quote: str, line: int, place: str) -> list[tuple[str, int, str, bool]]:
    """Parts of a piece with variables replaced: (text, line, note, whether it is open)."""
    if quote == "'":
        return [(text, line, "", False)]
    out: list[tuple[str, int, str, bool]] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote == '"' and text[at + 1 : at + 2] in ('"', "$", "`", "\\"):
            out.append((text[at + 1], line, "", False))
            at += 2
        elif char in "$`":
            end = end_of_dollar(text, at)
            out.append(_value(script, text[at:end], line, place))
            at = end
        else:
            end = next((i for i in range(at + 1, len(text)) if text[i] in "$`\\"), len(text))
            out.append((text[at:end], line, "", False))
            at = end
    return out


def _value(script: Script, dollar: str, line: int, place: str) -> tuple[str, int, str, bool]:
    """What $NAME and its kin stand for: (text, line of its origin, note, whether it is open)."""
    if dollar.startswith("$((") and dollar.endswith("))"):
        number, note = _arithmetic(script, dollar[3:-2], place)
        return (dollar, line, "", True) if number is None else (str(number), line, note, False)
    inner = dollar[2:-1] if dollar.startswith("${") else dollar[1:]
    match = _BRACED.fullmatch(inner) if dollar.startswith("${") else _PLAIN.fullmatch(inner)
    if match is None or dollar.startswith("`"):
        return (dollar, line, "", len(dollar) > 1)
    name = match.group(1) if match.re is _BRACED else inner
    script.used.add(name)
    words = script.variables.get(name)
    if words is not None:
        text = " ".join(word.text for word in words)
        origin = words[0].line if words else line
        note = next((word.note for word in words if word.note), "")
        if text or match.re is _PLAIN or not match.group(3):
            return text, origin, note, any(word.open for word in words)
    if match.re is _BRACED and match.group(3):
        default = match.group(4)
        if len(default) < 1000 and not re.search(r"[$`]", default):
            value = default.strip("\"'")
            return value, line, f"the script's default, unless {match.group(1)} is set when it runs", False
        if len(default) < 1000 and default.strip("\"'").startswith("$"):
            text, origin, note, is_open = _value(script, default.strip("\"'"), line, place)
            return text, origin, note or f"the script's default, unless {match.group(1)} is set when it runs", is_open
    return dollar, line, "", True


def _arithmetic(script: Script, text: str, place: str) -> tuple[int | None, str]:
    """The value of $(( text )) from variables that are known, and a note on these; None where it cannot be told."""
    notes: list[str] = []

    def known(match: re.Match[str]) -> str:
        script.used.add(match.group(1))
        words = script.variables.get(match.group(1), ())
        if len(words) != 1 or words[0].open or not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", words[0].text):
            raise ValueError(match.group(1))
        notes.append(words[0].note)
        return words[0].text

    try:
        plain = re.sub(rf"\$?\{{?({NAME})\}}?", known, text)
    except ValueError:
        return None, ""
    return whole_number(plain), next(filter(None, notes), "")
