"""What was recorded of one rank's step, as plain values: they pass from the child process to whoever asked as one JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import SpecError

__all__ = ["BEFORE", "Capture", "Event", "Group", "Storage", "read_capture", "write_capture"]

BEFORE = -1
"""Birth of a storage that was there before the step."""
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that the script asked of its device, in the order in which it asked.

    Args:
        name: the operator, such as `aten.mm`.
        path: the module it belongs to, of a backward that of its forward.
        phase: forward, backward, recompute or optimizer.
        work: gemm, attention, memory_bound, or what moves: a collective's name, send, recv.
        stream: 0 is the stream on which a script starts; others in the order of their first use.
        after: events of other streams that this one waits for.
        shape: batch, m, n, k of a product; sequences, heads, length, width of attention.
        call: as `simulator.program.calls` writes it.
        flops, read, written: FLOP; bytes of memory.
        launches: kernels.
        group: number of the process group, -1 for none.
        message: bytes per participant before the algorithm.
        waits: whether its stream waits until it has ended; False for a message under way beside the stream.
        peer: the other rank of a send or recv, -1 else.
        moves: of a collective: "parameters", "gradients" or "activations".
    """

    name: str
    path: str
    phase: str
    work: str
    stream: int = 0
    after: tuple[int, ...] = ()
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    call: str = "-"
    dtype: str = "bf16"
    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    launches: int = 1
    group: int = -1
    message: float = 0.0
    waits: bool = True
    peer: int = -1
    moves: str = ""

    @property
    def communicates(self) -> bool:
        """Whether it is a message."""
        return self.group >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Memory with a life: it stands from the start of event `born` (`BEFORE`: from before the step) to the end of event `died`.

    Args:
        name: shape and type of the tensor that made it, or the parameter's name.
        category: as the program has it.
        bytes: its size.
        died: the last event that had run when it was freed; None when it outlives the step.
    """

    name: str
    category: str
    bytes: float
    born: int
    died: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group: its name in the script ("" when it has none) and its world ranks in order."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One rank's step.

    Args:
        script: file and function, as the user gave them.
        world: ranks that the script was told of.
        versions: of the libraries that ran.
        tokens: entries looked up in the largest embedding table in the step; 0 when there is none.
        parameters: numbers of the model on this rank.
        notes: what was assumed, in words.
        unknown: kernels of no known kind, with how often each ran.
        shapes: of the model's parameters by name, those that modules share once; of a model that was built, not of a step.
    """

    script: str
    world: int
    rank: int
    versions: dict[str, str]
    groups: tuple[Group, ...]
    events: tuple[Event, ...]
    storages: tuple[Storage, ...]
    tokens: int = 0
    parameters: int = 0
    notes: tuple[str, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def meets(self, event: Event, ranks: Sequence[int]) -> bool:
        """Whether an event is what two of these ranks have together: a message from one to the other, or a collective of just the two."""
        if event.work in ("send", "recv"):
            return True
        members = self.groups[event.group].ranks if event.communicates else ()
        return len(members) == 2 and set(members) <= set(ranks)


_EVENT = tuple(f.name for f in dataclasses.fields(Event))
_STORAGE = tuple(f.name for f in dataclasses.fields(Storage))


def write_capture(capture: Capture) -> str:
    """Return a capture as JSON; `read_capture` is the inverse."""
    plain: dict[str, Any] = {f.name: getattr(capture, f.name) for f in dataclasses.fields(Capture)}
    plain |= {
        "format": _FORMAT,
        "groups": [[group.name, group.ranks] for group in capture.groups],
        "events": [[getattr(event, name) for name in _EVENT] for event in capture.events],
        "storages": [[getattr(storage, name) for name in _STORAGE] for storage in capture.storages],
    }
    return json.dumps(plain)


def read_capture(text: str) -> Capture:
    """Return the capture of a JSON text; the inverse of `write_capture`.

    Raises:
        SpecError: it is none.

    >>> capture = Capture(script="a.py", world=2, rank=0, versions={}, groups=(), events=(), storages=())
    >>> read_capture(write_capture(capture)) == capture
    True
    """
    try:
        plain = json.loads(text)
        if plain.pop("format") != _FORMAT:
            raise SpecError("a capture of another version; capture the script again")
        groups = tuple(Group(name=name, ranks=tuple(ranks)) for name, ranks in plain.pop("groups"))
        events = tuple(_event(values) for values in plain.pop("events"))
        storages = tuple(Storage(**dict(zip(_STORAGE, values, strict=True))) for values in plain.pop("storages"))
        notes = tuple(plain.pop("notes"))
        shapes = {key: tuple(shape) for key, shape in plain.pop("shapes").items()}
        return Capture(**plain, groups=groups, events=events, storages=storages, notes=notes, shapes=shapes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"no capture: {str(error)[:200]}") from None


def _event(values: list[Any]) -> Event:
    named = dict(zip(_EVENT, values, strict=True))
    named["after"], named["shape"] = tuple(named["after"]), tuple(named["shape"])
    return Event(**named)
