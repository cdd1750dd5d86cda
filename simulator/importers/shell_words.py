"""A shell script cut into statements of words: quotes, comments, continued lines, arrays, redirections.

Nothing is expanded here and nothing is run; `shell` follows the statements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simulator.errors import SpecError

__all__ = ["ASSIGN", "NAME", "Raw", "Scanner", "Statement", "end_of_dollar"]

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGN = re.compile(rf"({NAME})(\[[^\]]*\])?(\+?)=")


@dataclass(slots=True)
class Raw:
    """A word before expansion: pieces of (text, how it is quoted: "", '"' or "'")."""

    line: int
    pieces: list[tuple[str, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The word without its quotes."""
        return "".join(text for text, _ in self.pieces)

    @property
    def plain(self) -> str:
        """The text when nothing of it is quoted; "" else."""
        return self.pieces[0][0] if len(self.pieces) == 1 and not self.pieces[0][1] else ""


@dataclass(slots=True)
class Statement:
    """Words up to the end of a statement.

    Args:
        array: the words between the parentheses of NAME=( ... ).
        after: what stands in front of it: "&&", "||" or "".
        pattern: whether a closing parenthesis ends it, as in a branch of a case.
        document: what << END ... END hands to it, and its first line.
    """

    line: int
    words: list[Raw] = field(default_factory=list)
    array: list[Raw] | None = None
    after: str = ""
    pattern: bool = False
    document: tuple[str, int] | None = None


class Scanner:
    """Cuts a text into statements of words."""

    def __init__(self, text: str, line: int, place: str) -> None:
        self.text, self.at, self.line, self.place = text, 0, line, place

    def statements(self) -> list[Statement]:
        """Return all statements, in order.

        Raises:
            SpecError: a quote or an array is not closed.
        """
        found: list[Statement] = []
        now: Statement | None = None
        after = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r" or self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self._step(self.text.index("\n", self.at) - self.at + 1 if char == "\\" else 1)
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "\n;&|":
                now, double = None, self.text[self.at : self.at + 2]
                if double == ";;":
                    found.append(Statement(self.line, [Raw(self.line, [(";;", "")])]))
                after = double if double in ("&&", "||") else after if char == "\n" else ""
                self._step(2 if double in (";;", "&&", "||") else 1)
            elif char in "<>":
                self._redirect(now)
            elif char in "()":
                now = self._parenthesis(found, now)
            else:
                if now is None:
                    now = Statement(self.line, after=after)
                    after = ""
                    found.append(now)
                now.words.append(self._word())
        return found

    def _step(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _redirect(self, now: Statement | None) -> None:
        """Pass over > file, 2>&1 and << END ... END, whose text the statement keeps."""
        match = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n").match(self.text, self.at)
        if match and not self.text.startswith("<<<", self.at):
            end = re.compile(rf"^\s*{match.group(2)}\s*$", re.MULTILINE).search(self.text, match.end())
            if now is not None:
                body = self.text[match.end() : end.start() if end else len(self.text)]
                now.document = (body, self.line + 1)
            self._step((end.end() if end else len(self.text)) - self.at)
            return
        self._step(re.compile(r"[<>]+&?[ \t]*").match(self.text, self.at).end() - self.at)  # type: ignore[union-attr]
        if self.at < len(self.text) and self.text[self.at] not in "\n;|()<>& \t":
            self._word()

    def _parenthesis(self, found: list[Statement], now: Statement | None) -> Statement | None:
        """NAME=( opens an array; any other parenthesis (a function, a subshell, a case) ends a statement."""
        opens = self.text[self.at] == "("
        self._step(1)
        last = now.words[-1].text if now and now.words else ""
        if not (opens and now and last.endswith("=") and ASSIGN.fullmatch(last)):
            if opens and now and self.text[self.at : self.at + 1] == ")":
                now.words.append(Raw(self.line, [("()", "")]))
                self._step(1)
            elif not opens and now:
                now.pattern = True
            return None
        now.array = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t\r\n;&|<>(":
                self._step(1)
            elif self.text.startswith("\\\n", self.at) or self.text.startswith("\\\r\n", self.at):
                self._step(self.text.index("\n", self.at) - self.at + 1)
            else:
                now.array.append(self._word())
        if self.at >= len(self.text):
            raise SpecError(f"{self.place}, line {now.line}: {last}( is not closed")
        self._step(1)
        return now

    def _word(self) -> Raw:
        word = Raw(self.line)
        plain = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|<>()" or self.text.startswith(("\\\n", "\\\r\n"), self.at):
                break
            if char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise SpecError(f"{self.place}, line {self.line}: a quote (') is not closed")
                word.pieces += [(plain, ""), (self.text[self.at + 1 : end], "'")]
                plain = ""
                self._step(end + 1 - self.at)
            elif char == '"':
                word.pieces += [(plain, ""), (self._double(), '"')]
                plain = ""
            elif char == "\\":
                word.pieces += [(plain, ""), (self.text[self.at + 1 : self.at + 2], "'")]
                plain = ""
                self._step(2)
            elif char == "$" or char == "`":
                end = end_of_dollar(self.text, self.at)
                plain += self.text[self.at : end]
                self._step(end - self.at)
            else:
                plain += char
                self._step(1)
        word.pieces = [piece for piece in [*word.pieces, (plain, "")] if piece[0] or piece[1]] or [("", "'")]
        return word

    def _double(self) -> str:
        """The content of double quotes; a continued line inside is a blank."""
        begun, start = self.line, self.at + 1
        at = start
        while at < len(self.text) and self.text[at] != '"':
            if self.text[at] == "\\":
                at += 2
            elif self.text[at] in "$`":
                at = end_of_dollar(self.text, at)
            else:
                at += 1
        if at >= len(self.text):
            raise SpecError(f'{self.place}, line {begun}: a quote (") is not closed')
        content = self.text[start:at]
        self._step(at + 1 - self.at)
        return re.sub(r"\\\r?\n", "\n", content)


def end_of_dollar(text: str, at: int) -> int:
    """The place behind $NAME, ${...}, $(...) or `...` that begins here."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return len(text) if end < 0 else end + 1
    pair = {"{": "}", "(": ")"}.get(text[at + 1 : at + 2])
    if pair is None:
        match = re.compile(rf"\$(?:{NAME}|[0-9@*#?$!-])?").match(text, at)
        return match.end() if match else at + 1
    depth, opener = 0, text[at + 1]
    for i in range(at + 1, min(len(text), at + 10_000)):
        depth += (text[i] == opener) - (text[i] == pair)
        if depth == 0:
            return i + 1
    return len(text)
