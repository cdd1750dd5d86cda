"""A script or launch line -> the flags of the training program, and the GPUs it is launched on.

#SBATCH lines + script --shell--> commands --> launcher (torchrun, srun, deepspeed, accelerate) | program.py | its flags
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulator.errors import SpecError
from simulator.importers.document import MOST_TREE, Document
from simulator.importers.imported import Findings, brief
from simulator.importers.settings import Entry, Settings, plain_name, whole_of
from simulator.importers.shell import Command, Script, Word, read_script

__all__ = ["Launch", "read_launch"]

_INERT = {
    "cd", "set", "echo", "mkdir", "rm", "cp", "ls", "pwd", "exit", "date", "sleep", "module", "ulimit", "tee", "wait", "trap",
    "printf", "hostname", "nvidia-smi", "git", "unset", "shift", "true", "false", "break", "continue", "return", "sbatch", "cat",
    "chmod", "touch", "conda", "which", "[", "[[", "test", "pip", "export", "ln", "nvcc", "pushd", "popd", "pkill", "clear",
}  # fmt: skip
"""Commands that change nothing about the step that is launched."""
_ENVIRONMENT = re.compile(r"(NCCL|NVTE|CUDA|TORCH|PYTORCH|UB|CUDNN|CUBLAS|NVSHMEM|FI|UCX|GLOO|XLA|TE)_")
_INERT_VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "NCCL_IB_TIMEOUT",
    "TORCH_CUDA_ARCH_LIST", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_DISTRIBUTED_DEBUG", "CUDA_HOME",
}  # fmt: skip
_PER_NODE = ("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node", "nproc_per_machine")
_NODES = ("nnodes", "num_nodes", "num_machines", "nodes", "N")
_ALL = ("num_processes", "ntasks", "gpus", "n", "np")
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
}
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus"}
_SHELLS = {"bash", "sh", "/bin/bash", "/bin/sh", "zsh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The training program's flags.

    Args:
        program: the script's file name; "" when the file holds flags alone.
        flags: its flags.
    """

    program: str
    flags: Settings


def read_launch(document: Document, findings: Findings, likely: Callable[[str], bool]) -> Launch:
    """Return the flags of the command that most looks like the training program; put cluster.gpus where the launcher tells them.

    Args:
        likely: whether a flag's plain name is one of the program's.

    Raises:
        SpecError: the script is too large, or a quote in it is not closed.
    """
    if len(document.data) > MOST_TREE:
        raise SpecError(f"{document.place}: is larger than 1 MiB; expected a script")
    batch = _slurm(document, findings)
    known: dict[str, tuple[Word, ...]] = {name: (word,) for key, word in batch.items() for name in _SLURM.get(key, ())}
    script = read_script(document.text, document.place, 1, known)
    commands = [inner for command in script.commands for inner in _unwrapped(command, script, document.place, 3)]

    def score(command: Command) -> tuple[bool, int]:
        flags = {plain_name(w.text.partition("=")[0]) for w in command.words if w.text.startswith("--")}
        return not command.inside, sum(map(likely, flags))

    best = max(commands, key=lambda c: (score(c)[1] > 0, score(c)), default=None)
    if best is not None and score(best)[1] == 0:
        best = None
    _report(document, script, [c for c in commands if c is not best], findings)
    if best is None:
        return _handed_on(document, script, findings, likely)
    if best.inside:
        findings.assumed_key(
            document.line_of(best.line),
            brief(best.words[0].text),
            "the launch stands inside a test or loop, and is taken to run",
        )
    program, launcher, rest = _cut(best.words)
    _world({**batch, **_launcher_flags(launcher)}, document, findings)
    stray: list[Word] = []
    flags = Settings(dict(_flags(rest, document, stray)), findings)
    for word in stray:
        findings.skip(document.line_of(word.line), word.text)
    return Launch(program=program, flags=flags)


def _handed_on(document: Document, script: Script, findings: Findings, likely: Callable[[str], bool]) -> Launch:
    """The flags of a script without a launch: those of its variables that hold any, for the script that sources it."""
    flags: dict[str, Entry] = {}
    stray: list[Word] = []
    for name, words in script.variables.items():
        each = [
            Word(part, w.line, w.note, w.open)
            for w in words
            for part in (w.text.split() if len(words) == 1 else [w.text])
        ]
        known = sum(likely(plain_name(w.text.partition("=")[0])) for w in each if w.text.startswith("--"))
        if known > 1:
            findings.assumed_key(
                document.line_of(words[0].line),
                name,
                "no launch stands here: a script that sources this one hands these flags on",
            )
            flags |= dict(_flags(each, document, stray))
    for word in stray:
        findings.skip(document.line_of(word.line), word.text)
    return Launch(program="", flags=Settings(flags, findings))


def _unwrapped(command: Command, script: Script, place: str, depth: int) -> Iterator[Command]:
    """The command, or those of the script it hands to a shell: srun ... bash -c "cd x && python train.py"."""
    words = [word.text for word in command.words]
    at = next((i for i, w in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", w) and set(words[:i]) & _SHELLS), None)
    if at is None or depth == 0:
        yield command
        return
    inner = read_script(command.words[at + 1].text, place, command.words[at + 1].line, script.variables)
    script.used |= inner.used
    launcher = command.words[:at]
    for one in inner.commands:
        for found in _unwrapped(one, script, place, depth - 1):
            runs = any(word.text.startswith("--") for word in found.words)
            words_of = (*_without_shell(launcher), *found.words) if runs else found.words
            yield Command(words_of, found.line, command.inside or found.inside)


def _without_shell(words: Sequence[Word]) -> tuple[Word, ...]:
    last = max(i for i, word in enumerate(words) if word.text in _SHELLS)
    return tuple(words[:last])


def _cut(words: Sequence[Word]) -> tuple[str, Sequence[Word], Sequence[Word]]:
    """Return (the program's name, what stands before it, its flags)."""
    for i, word in enumerate(words):
        module = (
            i > 0 and words[i - 1].text == "-m" and not re.search(r"torch\.distributed|accelerate|deepspeed", word.text)
        )
        if re.search(r"[^/]\.py$", word.text) or module:
            return word.text.rsplit("/", 1)[-1], words[:i], words[i + 1 :]
    first = next((i for i, word in enumerate(words) if word.text.startswith("--")), len(words))
    return "", words[:first], words[first:]


def _flags(words: Sequence[Word], document: Document, stray: list[Word]) -> Iterator[tuple[str, Entry]]:
    """Flags with their values; a later one of the same name wins."""
    i = 0
    while i < len(words):
        word = words[i]
        name, equals, value = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name):
            stray.append(word)
            i += 1
            continue
        values = [] if not equals else [Word(value, word.line, word.note, word.open)]
        i += 1
        while not equals and i < len(words) and not re.match(r"--?[A-Za-z]", words[i].text):
            values.append(words[i])
            i += 1
        texts = [v.text for v in values]
        yield (
            plain_name(name),
            Entry(
                value=True if not texts else texts[0] if len(texts) == 1 else texts,
                place=document.line_of(word.line),
                text=brief(" ".join([name, *texts])),
                note=next((v.note for v in values if v.note), ""),
                open=any(v.open for v in values),
            ),
        )


def _launcher_flags(words: Sequence[Word]) -> dict[str, Word]:
    """Flags of the launcher with one value each."""
    found: dict[str, Word] = {}
    for i, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name.startswith("-"):
            following = words[i + 1] if i + 1 < len(words) else Word("", word.line)
            key = plain_name(name)
            found[_SHORT.get(key, key)] = Word(value, word.line, word.note, word.open) if equals else following
    return found


def _slurm(document: Document, findings: Findings) -> dict[str, Word]:
    """What #SBATCH lines ask for."""
    found: dict[str, Word] = {}
    for number, line in enumerate(document.text.split("\n"), 1):
        if not line.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(line[7:], comments=True)
        except ValueError:
            findings.skip(document.line_of(number), line)
            continue
        flags = _launcher_flags([Word(word, number) for word in words])
        gres = flags.pop("gres", None)
        if gres is not None and re.search(r"gpu(:[\w-]+)?:(\d+)", gres.text):
            flags["gpus_per_node"] = Word(gres.text.rsplit(":", 1)[1], number)
        for name, word in flags.items():
            if name == "gpus_per_node":
                word = Word(word.text.rsplit(":", 1)[-1], number)
            if name in _SLURM or name == "gpus":
                found[name] = word
            else:
                findings.ignore(document.line_of(number), line)
    return found


def _world(flags: dict[str, Word], document: Document, findings: Findings) -> None:
    """Put cluster.gpus: nodes x GPUs of a node, or all of them."""

    def number(names: Sequence[str]) -> tuple[int, Word] | None:
        for name in names:
            word = flags.get(name)
            if word is None:
                continue
            if word.open or not re.fullmatch(r"[0-9]{1,9}", word.text):
                findings.skip(document.line_of(word.line), f"{name} {word.text} (how many is known only when it runs)")
                return None
            entry = Entry(value=word.text, place=document.line_of(word.line), text=f"{name} {word.text}")
            return whole_of(entry), word
        return None

    per_node, nodes, everything = number(_PER_NODE), number(_NODES), number(_ALL)
    if per_node is not None:
        torchrun = "nproc_per_node" in flags or "num_gpus" in flags
        if nodes is None and not torchrun:
            return
        count = per_node[0] * (nodes[0] if nodes else 1)
        words = [word for _, word in filter(None, (per_node, nodes))]
    elif everything is not None:
        count, words = everything[0], [everything[1]]
    else:
        return
    note = next((word.note for word in words if word.note), "")
    if note:
        findings.assume("cluster.gpus", count, note)
    else:
        findings.put("cluster.gpus", count, f"{document.line_of(words[0].line)}: GPUs of a node x nodes")


def _report(document: Document, script: Script, others: Sequence[Command], findings: Findings) -> None:
    """Say what else stands in the script."""
    for line, text in script.skipped:
        findings.skip(document.line_of(line), f"{text} (whether it runs is not known)")
    for line, text in script.dead:
        findings.ignore(document.line_of(line), f"{text} (does not run)")
    for command in others:
        first = command.words[0].text.rsplit("/", 1)[-1]
        report = findings.ignore if first in _INERT else findings.skip
        report(document.line_of(command.line), command.text)
    for name, words in script.variables.items():
        if not words or name in _INERT_VARIABLES or not (_ENVIRONMENT.match(name) and name not in script.used):
            if words and name not in script.used and not name.startswith("SLURM_"):
                findings.ignore(document.line_of(words[0].line), f"{name}={words[0].text}")
            continue
        findings.skip(document.line_of(words[0].line), f"{name}={words[0].text}")
