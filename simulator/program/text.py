"""Programs as text, one line per thing and one line per row; `parse_text` is the exact inverse of `render_text`.

    program "two ranks" axes=pp=2
    rank 0 weight=8
    stream 0 0:compute
    item 0 segment "layer" phase=forward
    item 1 transfer "act" message=64MiB dtype=bf16 group=pp ranks=0,1 account=pp
    0 compute 0F0 item=0 on 0:compute
    1 transfer item=1 message=64MiB group=pp on 0:pp>1,1:pp<0 after 0  # act

Text after `#` is for people.  Bytes are exact: MiB when whole, bytes else.  Reading is strict and executes nothing.
"""

from __future__ import annotations

import json
import re

from simulator.errors import ProgramError
from simulator.program.calls import write_call
from simulator.program.program import (
    COLLECTIVE,
    COMPUTE,
    KIND_NAMES,
    Axes,
    FusedSegment,
    Link,
    OperatorTable,
    Program,
    Segment,
    Tensor,
)
from simulator.program.text_parser import ACTION_LETTERS, OPERATOR_COLUMNS, ROW_DEFAULTS, parse_text
from simulator.program.text_words import write_served

__all__ = ["parse_text", "render_text"]

_MIB = 2**20
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]*")


def render_text(program: Program) -> str:
    """Return the program as text that `parse_text` reads back.

    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder("one row")
    >>> row = build.add_row(build.add_item(plain_segment("layer")), build.add_stream(build.add_rank()))
    >>> print(render_text(build.build()), end="")
    program "one row"
    rank 0 weight=1
    stream 0 0:compute
    item 0 segment "layer" phase=forward
    0 compute item=0 on 0:compute  # layer
    """
    axes = f" axes={_axes(program.axes)}" if program.axes else ""
    framework = f" framework={_word(program.framework)}" if program.framework else ""
    tokens = f" tokens={program.tokens}" if program.tokens else ""
    lines = [f"program {_quote(program.name)}{axes}{framework}{tokens}"]
    own = [f" axes={_axes(mesh.axes)} first={mesh.first}" for mesh in program.stages] or [""] * program.ranks
    weights = program.rank_weight.tolist()
    lines += [f"rank {rank} weight={_number(weight)}{own[rank]}" for rank, weight in enumerate(weights)]
    for rank, effect in enumerate(program.resident):
        lines += [f"resident {rank} {_tensor(tensor)}" for tensor in effect.tensors]
    for rank, effect in enumerate(program.host_resident):
        lines += [f"host {rank} {_tensor(tensor)}" for tensor in effect.tensors]
    for rank, effect in enumerate(program.nvme_resident):
        lines += [f"nvme {rank} {_tensor(tensor)}" for tensor in effect.tensors]
    streams = [f"{rank}:{lane}" for rank, lane in zip(program.stream_rank.tolist(), program.stream_lane, strict=True)]
    lines += [f"stream {number} {name}" for number, name in enumerate(streams)]
    lines += _items(program)
    for number, effect in enumerate(program.effects):
        lines += [f"effect {number}", *(f"tensor {number} {_tensor(tensor)}" for tensor in effect.tensors)]
    lines += _rows(program, streams)
    return "\n".join(lines) + "\n"


def _axes(axes: Axes) -> str:
    return ",".join(f"{name}={size}" for name, size in axes)


def _items(program: Program) -> list[str]:
    """Tables of operators, then items in order, then blocks; blocks may hold segments that are no item of their own."""
    lines: list[str] = []
    tables: dict[int, int] = {}
    extra: dict[int, int] = {id(item): number for number, item in reversed(list(enumerate(program.items)))}
    loose: list[str] = []
    pairs = [item for item in program.items if isinstance(item, FusedSegment)]
    for held in [*(block.segments for block in program.blocks), *((pair.first, pair.second) for pair in pairs)]:
        for segment in held:
            if id(segment) not in extra:
                extra[id(segment)] = len(program.items) + len(loose)
                loose.append(f"loose {extra[id(segment)]} {_segment(segment, tables, lines)}")
    items = []
    for number, item in enumerate(program.items):
        if isinstance(item, FusedSegment):
            text = f"fused {_quote(item.name)} first={extra[id(item.first)]} second={extra[id(item.second)]}"
        else:
            text = _segment(item, tables, lines) if isinstance(item, Segment) else _link(item)
        items.append(f"item {number} {text}")
    blocks = []
    for number, block in enumerate(program.blocks):
        numbers = ",".join(str(extra[id(segment)]) for segment in block.segments)
        blocks.append(f"block {number} {_quote(block.name)} segments={numbers or '-'}")
    return lines + items + loose + blocks


def _segment(segment: Segment, tables: dict[int, int], lines: list[str]) -> str:
    pieces = []
    for table, count in segment.pieces:
        if id(table) not in tables:
            tables[id(table)] = len(tables)
            lines += _table(table, tables[id(table)])
        pieces.append(f"{count}x{tables[id(table)]}")
    words = [f"segment {_quote(segment.name)} phase={_word(segment.phase)}"]
    words += [f"pieces={','.join(pieces)}"] if pieces else []
    words += ["synchronises"] if segment.synchronises else []
    return " ".join(words)


def _table(table: OperatorTable, number: int) -> list[str]:
    lines = [f"table {number} {_quote(table.name)}"]
    for i in range(len(table)):
        words = [f"operator {number} {_quote(table.label[i])} {KIND_NAMES[table.kind[i]]}"]
        for column in OPERATOR_COLUMNS:
            value = getattr(table, column)[i]
            if column == "shape":
                text = ",".join(str(int(v)) for v in value)
            elif column == "group":
                text = _join(value)
            elif column == "call":
                text = write_call(value)
            elif column in ("read", "written", "message"):
                text = _bytes(float(value))
            elif column in ("launches", "beside", "captured"):
                text = str(int(value))
            elif column == "flops":
                text = _number(float(value))
            else:
                text = _word(value)
            words.append(f"{column}={text}")
        lines.append(" ".join(words))
    return lines


def _link(link: Link) -> str:
    what = f"{KIND_NAMES[link.kind]} {_word(link.collective)}" if link.collective else KIND_NAMES[link.kind]
    ranks = ",".join(map(str, link.pipeline_ranks)) or "-"
    slices = f" slices={link.slices}" if link.slices else ""
    served = f" served={write_served(link.served)}" if link.served else ""
    ends = f" ends={','.join('x'.join(map(str, end)) for end in link.ends)}" if link.ends else ""
    return (
        f"{what} {_quote(link.name)} message={_bytes(link.message)} dtype={_word(link.dtype)} group={_join(link.group)} "
        f"ranks={ranks} account={_word(link.account)}{slices}{served}{ends}{' blocks' if link.blocks else ''}"
    )


def _rows(program: Program, streams: list[str]) -> list[str]:
    columns: dict[str, list[int]] = {}
    for name in (*ROW_DEFAULTS, "rank", "item", "kind"):
        column = getattr(program, name)
        columns[name] = column.tolist() if len(column) else [ROW_DEFAULTS.get(name, -1)] * program.size
    held, edges = program.streams.tolist(), program.stream_offsets.tolist()
    after, after_edges = program.after.tolist(), program.after_offsets.tolist()
    stream_rank = program.stream_rank.tolist()
    lines = []
    for row in range(program.size):
        item, kind = program.items[columns["item"][row]], columns["kind"][row]
        mine = held[edges[row] : edges[row + 1]]
        words = [str(row), KIND_NAMES[kind]]
        values = {name: columns[name][row] for name in ROW_DEFAULTS}
        if kind == COMPUTE and 0 <= values["action"] <= 3 and values["chunk"] >= 0 and values["microbatch"] >= 0:
            words.append(f"{values['chunk']}{ACTION_LETTERS[values['action']]}{values['microbatch']}")
            del values["action"], values["chunk"], values["microbatch"]
        if isinstance(item, Link):
            words += [_word(item.collective)] if kind == COLLECTIVE else []
            words += [f"message={_bytes(item.message)}", f"group={_join(item.group)}"]
        words.append(f"item={columns['item'][row]}")
        if not mine or columns["rank"][row] != stream_rank[mine[0]]:
            words.append(f"rank={columns['rank'][row]}")
        words += [f"{name}={value}" for name, value in values.items() if value != ROW_DEFAULTS[name]]
        words += ["on", ",".join(streams[s] for s in mine)] if mine else []
        wait = after[after_edges[row] : after_edges[row + 1]]
        words += ["after", ",".join(map(str, wait))] if wait else []
        lines.append(" ".join(words) + f"  # {_comment(item.name)}")
    return lines


def _comment(name: str) -> str:
    return "".join(c if c.isprintable() else " " for c in name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _word(text: str) -> str:
    """Return a name bare when it is one plain word, in quotes else; `-` is the empty one."""
    return text if _PLAIN.fullmatch(text) else _quote(text) if text else "-"


def _join(names: tuple[str, ...]) -> str:
    """Return the mesh axes of a group.

    Raises:
        ProgramError: an axis is no plain word.
    """
    for name in names:
        if not _PLAIN.fullmatch(name):
            raise ProgramError(f"a mesh axis is a word of letters, digits and _.:-, but a group has {name!r}")
    return "+".join(names) or "-"


def _number(value: float) -> str:
    return str(int(value)) if abs(value) < 2**53 and value == int(value) else repr(value)


def _bytes(value: float) -> str:
    return f"{_number(value / _MIB)}MiB" if value and value % _MIB == 0 and value < 2**53 else f"{_number(value)}B"


def _tensor(tensor: Tensor) -> str:
    return f"{tensor.category} {_quote(tensor.name)} {_bytes(tensor.bytes)}"
