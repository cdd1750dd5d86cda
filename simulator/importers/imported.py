"""What a file of another program said: fields of a job, what was assumed, what has no effect, and what was not understood.

Field names are dotted: `plan.tensor_parallel`, `workload.global_batch_size`, `model.layers`, `cluster.gpus`.  Nothing that a file
says is dropped in silence: a line or key becomes a field (`read`), stands in `no_effect` (known, and without bearing on time or
memory: a learning rate, a path), or stands in `not_understood`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.errors import shortened
from simulator.report.schema import SCHEMA_VERSION

__all__ = ["Assumed", "Findings", "Line", "Read", "brief"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A field that the file decides only together with a default of its program or a rule.

    Args:
        why: the default or rule, in words.
    """

    field: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A field and the place it was read at."""

    field: str
    value: Any
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line, key or flag of a file, and where it stands."""

    place: str
    text: str


_LONGEST = 200


def brief(text: object) -> str:
    """Return a text of a file as it may be shown: one line, at most 200 characters."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return shortened(line, _LONGEST)


@dataclass(slots=True)
class Findings:
    """What one file, or several joined, said; an importer collects it.

    Args:
        source_format: the importer's name; of several files joined by " + ".
        tables: workload, model, plan and cluster, each with the fields of a job that the files decide.
        steps: measured steps, of a log or trace (`steps.Steps`); None for other files.
        operations: what a trace or workload file says is done (`operations.Operations`); None for other files.
        files: further data files that `dtsim import -o` may write: (kind, name, content).
        per_replica: sequences of a step on each replica, where the file says these and not all of them together.
    """

    source_format: str
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    read: list[Read] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)
    no_effect: list[Line] = field(default_factory=list)
    not_understood: list[Line] = field(default_factory=list)
    steps: Any = None
    operations: Any = None
    files: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    per_replica: int | None = None

    def put(self, name: str, value: Any, place: str) -> None:
        """Set a field that the file says."""
        self._set(name, value)
        self.read.append(Read(field=name, value=value, place=place))

    def assume(self, name: str, value: Any, why: str) -> None:
        """Set a field that follows from a default or a rule."""
        self._set(name, value)
        self.assumed.append(Assumed(field=name, value=value, why=why))

    def assumed_key(self, key: str, value: object, why: str) -> None:
        """Add a value that the file leaves to its program, and that fields were made of."""
        self.assumed.append(Assumed(field=key, value=value, why=why))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field; the default when it is not set."""
        table, _, key = name.partition(".")
        return self.tables.get(table, {}).get(key, default)

    def drop(self, name: str, why: str) -> None:
        """Take a field back that has no effect beside the others, and say why."""
        table, _, key = name.partition(".")
        value = self.tables.get(table, {}).pop(key, None)
        self.assumed = [a for a in self.assumed if a.field != name]
        places = [r.place for r in self.read if r.field == name]
        self.read = [r for r in self.read if r.field != name]
        if places:
            self.no_effect.append(Line(place=places[-1], text=f"{name} = {brief(value)}: {why}"))

    def skip(self, place: str, text: object) -> None:
        """Add a line that was not understood."""
        self.not_understood.append(Line(place=place, text=brief(text)))

    def ignore(self, place: str, text: object) -> None:
        """Add a line that is known to change neither time nor memory."""
        self.no_effect.append(Line(place=place, text=brief(text)))

    def job(self) -> dict[str, dict[str, Any]]:
        """Return workload, plan and cluster; the model's fields stand in `workload.model`."""
        workload = dict(self.tables.get("workload", {}))
        if self.tables.get("model"):
            workload["model"] = dict(self.tables["model"])
        return {
            "workload": workload,
            "plan": dict(self.tables.get("plan", {})),
            "cluster": dict(self.tables.get("cluster", {})),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of `dtsim import --json`."""
        answer: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "kind": "import",
            "source_format": self.source_format,
            "job": self.job(),
            "read": [{"field": r.field, "value": r.value, "place": r.place} for r in self.read],
            "assumed": [{"field": a.field, "value": a.value, "why": a.why} for a in self.assumed],
            "no_effect": [{"place": line.place, "text": line.text} for line in self.no_effect],
            "not_understood": [{"place": line.place, "text": line.text} for line in self.not_understood],
        }
        if self.steps is not None:
            answer["measured"] = self.steps.to_dict()
            if self.operations is not None:
                answer["measured"]["kernels"] = [row.as_kernels() for row in self.operations.by_kind()]
        if self.operations is not None:
            answer["operations"] = self.operations.to_dict()
        if self.files:
            answer["files"] = [{"kind": kind, "name": name, "content": content} for kind, name, content in self.files]
        return answer

    def _set(self, name: str, value: object) -> None:
        table, _, key = name.partition(".")
        self.tables.setdefault(table, {})[key] = value
        self.assumed = [a for a in self.assumed if a.field != name]
