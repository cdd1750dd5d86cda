"""What is known, by kind: data files and plug-ins, for `dtsim list` and `dtsim show`."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.errors import UnknownNameError, shortened
from simulator.options.option import declared
from simulator.options.page import default, matters_with, values
from simulator.plan.plan import Plan
from simulator.registry import Family
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table
from simulator.specs import KINDS as FILE_KINDS
from simulator.specs import find_spec, lineage, names, read_toml, resolve
from simulator.studies.families import FAMILIES
from simulator.units import show

__all__ = ["Member", "kind_named", "list_kind", "program_text", "show_member"]

_WIDEST = 100
"""Characters of a value in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a kind.

    Args:
        kind, name: as listed.
        place: the file or module it was read from.
        facts: key -> value, with units, as its file says.
        sources: key -> where the value was read ("*" = all others).
        derived: what follows from the facts, in words and human units.
        inherited: key -> which member it is taken over from, of a file that extends others.
        picture: lines to look at, such as a schedule's timeline.
        table: what follows, as rows.
    """

    kind: str
    name: str
    place: str
    facts: dict[str, Any]
    sources: dict[str, str]
    derived: dict[str, str]
    inherited: dict[str, str] = field(default_factory=dict)
    picture: str = ""
    table: Table | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim show`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "name": self.name,
            "place": self.place,
            "facts": self.facts,
            "sources": self.sources,
            "derived": self.derived,
            "inherited": self.inherited,
        }

    def sections(self) -> list[Section]:
        """Return the member to read."""
        rows = tuple(row for key, value in _flat(self.facts) for row in self._rows(key, value))
        one = f"{self.kind[:-3]}y" if self.kind.endswith("ies") else self.kind.removesuffix("s")
        title = f"{one} {self.name} ({self.place})"
        columns = 4 if self.inherited else 3
        out = [Section(title=title, table=Table(headings=("",) * columns, rows=rows, left=tuple(range(columns))))]
        if self.derived:
            out.append(
                Section(title="follows", table=Table(headings=("", ""), rows=tuple(self.derived.items()), left=(0, 1)))
            )
        if self.table:
            out.append(Section(title="layers", table=self.table))
        if self.sources:
            cited = tuple(f"[{i}] {text}" for i, text in enumerate(dict.fromkeys(self.sources.values()), 1))
            out.append(Section(title="sources", lines=cited))
        if self.picture:
            out.append(Section(title="looks like", lines=tuple(self.picture.split("\n"))))
        return out

    def _rows(self, key: str, value: Any) -> Iterator[tuple[str, ...]]:
        """A line of key, value, source and, where a member extends others, whose it is; long text goes on below."""
        first, *more = textwrap.wrap(_said(value), _WIDEST) or [""]
        whose = (f"from {self.inherited[key]}" if key in self.inherited else "",) if self.inherited else ()
        yield key, first, self._source(key), *whose
        yield from (("", text, "", *("" for _ in whose)) for text in more)

    def _source(self, key: str) -> str:
        """Return the number of a key's source: its own, that of a table it lies in, or that of all others."""
        parts = key.split(".")
        keys = [".".join(parts[:n]) for n in range(len(parts), 0, -1)] + [parts[-1], "*"]
        text = next((self.sources[k] for k in keys if k in self.sources), None)
        return "" if text is None else f"[{list(dict.fromkeys(self.sources.values())).index(text) + 1}]"


_LISTED = ("kinds", "engines", "collectives")
"""Kinds whose members have a name and a few words, and no more to show."""


def kind_named(text: str, shown: bool = False) -> str:
    """Return the kind meant by a word: the plural or the singular.

    Args:
        shown: whether its members must have more to show than a name and a few words.

    Raises:
        UnknownNameError: no such kind.

    >>> kind_named("gpu"), kind_named("schedules"), kind_named("recompute_policy")
    ('gpus', 'schedules', 'recompute_policies')
    """
    known = [*FILE_KINDS, *FAMILIES, "options", *(() if shown else _LISTED)]
    for kind in (text, text.lower(), text.lower() + "s", text.lower().removesuffix("y") + "ies"):
        if kind in known:
            return kind
    raise UnknownNameError("kind that can be shown" if shown else "kind", text[:100], known)


def list_kind(kind: str) -> list[tuple[str, str]]:
    """Return (name, a few words) of every member of a kind.

    Raises:
        UnknownNameError: no such kind.

    >>> [name for name, _ in list_kind("engines")]
    ['compiled', 'simpy']
    """
    kind = kind_named(kind)
    if kind == "kinds":
        return [(name, "") for name in sorted([*FILE_KINDS, *FAMILIES, "collectives", "engines", "options"])]
    if kind == "engines":
        from simulator.engine import ENGINES

        return [(name, "") for name in ENGINES]
    if kind == "collectives":
        from simulator.collectives.base import KINDS

        return [(name, "") for name in KINDS]
    if kind == "options":
        return [(option.name, shortened(option.doc, 110)) for option in declared(Plan).values()]
    if kind in FAMILIES:
        return [(name, _first_line(member)) for name, member in _family(kind).members.items()]
    return [(name, _brief(kind, name)) for name in names(kind)]


def _family(kind: str) -> Family[Any]:
    import importlib

    module, name = FAMILIES[kind]
    found: Family[Any] = getattr(importlib.import_module(module), name)
    return found


def _first_line(member: object) -> str:
    return (type(member).__doc__ or "").strip().split("\n")[0]


def _shape(data: Mapping[str, Any]) -> str:
    """The size of a model in words, from its file."""
    network = data.get("network")
    if not network:
        return f"{data['layers']} layers, hidden {data['hidden']}"
    return f"{sum(layer.get('repeat', 1) for layer in network['layers']) - 2} layers and two ends"


def _brief(kind: str, name: str) -> str:
    """A few words from a data file, unchecked."""
    data = read_toml(find_spec(kind, name))
    peaks = data.get("peak_flops")
    templates: dict[str, Callable[[], str]] = {
        "models": lambda: ", ".join(filter(None, (_shape(data), _rounded(data.get("parameters_published", ""))))),
        "gpus": lambda: (
            f"{data['memory']}, {data['memory_bandwidth']}, bf16 {peaks.get('bf16', '-') if peaks else '-'}"
        ),
        "links": lambda: f"{data['bandwidth']}, {data['latency']}",
        "nodes": lambda: (
            f"{data['gpus']} x {data['gpu']}, {data['link']}, network {data.get('network_link') or 'none'}"
        ),
        "clusters": lambda: f"{data.get('nodes', 1)} x {data['node']}",
        "jobs": lambda: str(data.get("notes", "")),
        "frameworks": lambda: str(data.get("notes", "")),
        "calibrations": lambda: str(data.get("notes", "")),
        "recompute_policies": lambda: str(data.get("notes", "")),
        "reliability": lambda: str(data.get("notes", "")),
    }
    try:
        text = templates[kind]() if kind in templates else ""
    except (KeyError, AttributeError, TypeError):
        text = "(its file is wrong: dtsim show says how)"
    return shortened(text, 110)


def _rounded(quantity: str) -> str:
    """A quantity as a file has it, with at most four digits: a paper may give every one of them."""
    number, _, unit = str(quantity).partition(" ")
    return f"{float(number):.4g} {unit}" if unit else str(quantity)


def show_member(kind: str, name: str, settings: Sequence[str] = ()) -> Member:
    """Return one member of a kind; data files are checked first.

    Args:
        kind: singular or plural.
        name: name, alias, or path of a file.
        settings: of a job: `table.key=value` to apply.

    Raises:
        UnknownNameError: no such kind or member.
        SpecError: its file is wrong.
    """
    kind = kind_named(kind, shown=True)
    if kind in FAMILIES:
        return _plug_in(kind, name)
    if kind == "options":
        return _option(name)
    path = find_spec(kind, name)
    data, inherited = read_toml(path), {}
    if kind == "jobs":
        from simulator.job import apply_settings

        data = apply_settings(data, settings)
    derived = _derived(kind, str(path), settings)
    if kind == "frameworks":
        found = resolve(lineage(path, kind))
        data, lines = dict(found.data), [Path(file).stem for file in found.files]
        whose = {key: Path(file).stem for key, file in found.stated_in.items() if file != found.files[0]}
        inherited = {key: whose[key] for key in data if key in whose}
        derived |= {"goes back to": ", ".join(lines[1:])} if lines[2:] else {}
    sources = data.pop("sources", {})
    return Member(
        kind=kind,
        name=str(data.get("name", path.stem)),
        place=_place(str(path)),
        facts=data,
        sources=sources,
        derived=derived,
        inherited=inherited,
        table=_layers(str(path)) if kind == "models" else None,
    )


def _layers(path: str) -> Table | None:
    """The layers of a network in order, alike ones behind each other as one row, with sizes of one image; None of other models."""
    from simulator.workload.counts import forward_products
    from simulator.workload.model import load_model

    m = load_model(path)
    if m.network is None:
        return None
    rows = []
    for kind, times in ((kind, len(list(some))) for kind, some in itertools.groupby(m.network.names)):
        layer = m.network.kinds[kind]
        rows.append(
            (
                kind,
                f"{times:,}",
                " x ".join(map(str, layer.steps[-1].made)),
                f"{m.kind_parameters(kind):,}",
                f"{2e-9 * forward_products(m, kind):.3f}",
            )
        )
    headings = ("layer", "times", "makes (channels x height x width)", "parameters each", "GFLOP each, forward")
    return Table(headings=headings, rows=tuple(rows))


def _option(name: str) -> Member:
    """A choice of a plan, as it is declared."""
    options = declared(Plan)
    if name not in options:
        raise UnknownNameError("option", name[:100], options, shown_by="dtsim list options")
    one = options[name]
    facts = {
        "what": one.doc,
        "group": one.group,
        "values": values(one),
        "default": default(one),
        "matters with": matters_with(one),
    }
    said = {key: text for key, text in facts.items() if text}
    return Member(kind="options", name=name, place="[plan] of a job", facts=said, sources={}, derived={})


def _place(path: str) -> str:
    from simulator.specs import data_roots

    for root in data_roots():
        if Path(path).resolve().is_relative_to(root.resolve()):
            return str(Path(path).resolve().relative_to(root.resolve()))
    return path


def _derived(kind: str, path: str, settings: Sequence[str]) -> dict[str, str]:
    """Read the file by its rules and return what follows from it."""
    if kind == "models":
        from simulator.workload.model import load_model

        m = load_model(path)
        if m.network:
            return {
                "parameters": f"{m.parameters:,}",
                "layers between the ends": str(m.depth),
                "FLOP of an image, forward": f"{2 * m.products:.3g}",
            }
        parts = {
            "per layer": m.layer_parameters,
            "embedding": m.embedding_parameters,
            "head and norm": m.head_parameters,
        }
        trained = {"parameters that are trained": f"{m.trained_parameters:,}"} if m.lora_rank else {}
        return {"parameters": f"{m.parameters:,}"} | trained | {f"parameters, {k}": f"{v:,}" for k, v in parts.items()}
    if kind == "gpus":
        from simulator.hardware.gpu import load_gpu

        g = load_gpu(path)
        return {
            f"FLOP per byte at the {name} peak": f"{peak / g.memory_bandwidth:,.0f}"
            for name, peak in g.peak_flops.items()
        }
    if kind == "clusters":
        from simulator.hardware.cluster import load_cluster

        c = load_cluster(path)
        levels = {
            f"level {level.name}": f"{level.size} ranks, {level.link.name}, {show(level.bandwidth, 'B/s')} per GPU and "
            f"direction, {show(level.latency, 's')} per hop"
            for level in c.levels
        }
        return {"GPUs": f"{c.world_size:,} x {c.gpu.name} ({show(c.gpu.memory, 'B')} each)"} | levels
    if kind == "jobs":
        return _derived_job(path, settings)
    from simulator.hardware.cluster import load_node
    from simulator.hardware.link import load_link
    from simulator.plan.framework import load_framework
    from simulator.plan.recompute_policy import load_recompute_policy

    checks: dict[str, Callable[[str], Any]] = {
        "nodes": load_node,
        "links": load_link,
        "frameworks": load_framework,
        "recompute_policies": load_recompute_policy,
    }
    if kind in checks:
        checks[kind](path)
    return {}


def _derived_job(path: str, settings: Sequence[str]) -> dict[str, str]:
    from simulator.job import load_job
    from simulator.lowering import resolve_on

    job = load_job(path, settings)
    resolved = resolve_on(job.workload, job.plan, job.cluster)
    axes = " x ".join(f"{axis} {size}" for axis, size in resolved.axes)
    held = f"{resolved.microbatches} of {resolved.microbatch_size} per replica"
    if resolved.stages:
        axes = f"stages of {', '.join(str(s.tensor_parallel * s.data_parallel) for s in resolved.stages)}"
        held = f"{resolved.microbatches} of {job.plan.microbatch_size}"
    return {
        "model": f"{job.workload.model.name}, {job.workload.model.parameters:,} parameters",
        "GPUs": f"{job.cluster.world_size:,} x {job.cluster.gpu.name}: {axes}",
        "tokens per step": f"{job.workload.tokens:,}",
        "microbatches": held,
        "schedule": resolved.schedule.name,
        "recompute": resolved.recompute,
        "attention kernel": resolved.style.attention,
        "gradient buffers": resolved.gradient_dtype,
    } | {f"assumed ({i})": text for i, text in enumerate(job.assumptions, 1)}


def _plug_in(kind: str, name: str) -> Member:
    member = _family(kind).get(name)
    fields = ("aliases", "kinds", "protocols", "flush", "splits_backward", "replicas", "options", "unsaid")
    facts = {field: getattr(member, field) for field in fields if hasattr(member, field)}
    facts = {key: list(value) if isinstance(value, tuple | Mapping) else value for key, value in facts.items()}
    return Member(
        kind=kind,
        name=member.name,
        place=type(member).__module__,
        facts={"what": _first_line(member)} | facts,
        sources={"*": member.source} if getattr(member, "source", "") else {},
        derived={},
        picture=_picture(member.name) if kind == "schedules" else "",
    )


def _picture(schedule: str) -> str:
    """A small timeline of a schedule."""
    from simulator.report.timeline import render_timeline
    from simulator.schedules import SCHEDULES
    from simulator.schedules.base import Shape
    from simulator.studies.changes import chunks_for
    from simulator.studies.schedule_figures import schedule_figures

    chunks = chunks_for(SCHEDULES.get(schedule), Shape(4, 8, 1))
    if chunks is None:
        return ""
    figures = schedule_figures(schedule, 4, 8, chunks)
    return render_timeline(figures.program, figures.trace)


def _flat(table: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    out: list[tuple[str, object]] = []
    for key, value in table.items():
        out += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return out


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return f"{len(value)} tables, in the file"
    return ", ".join(map(_said, value)) if isinstance(value, list) else str(value)


def program_text(job: str, settings: Sequence[str], rows: int) -> tuple[list[str], int]:
    """Return the first lines of the program of a job as text (0 = all), and how many there are.

    Raises:
        SimulatorError: as `load_job` and `lower` raise.
    """
    from simulator.job import load_job
    from simulator.lowering import lower
    from simulator.program.text import render_text

    the_job = load_job(job, settings)
    lines = render_text(lower(the_job.workload, the_job.plan, the_job.cluster.world_size)).rstrip("\n").split("\n")
    return lines[:rows] if rows else lines, len(lines)
