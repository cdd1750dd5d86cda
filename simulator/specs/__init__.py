"""Data files: TOML in, frozen pydantic values out, and messages that say where and what to write instead.

A *kind* is a folder of data files ("gpus", "clusters", "models", ...); a *name* is a file's stem.  A name is looked up
in the working directory first, then in the data that came with the package: a user's own file needs no installation.

    >>> find_spec("gpus", "A100-80GB-SXM").name
    'a100_80gb_sxm.toml'
"""

from __future__ import annotations

from simulator.specs.extends import lineage, resolve
from simulator.specs.files import CsvRows, ending_error, read_bytes, replacing, write_text
from simulator.specs.folders import KINDS, data_roots, find_spec, is_path, name_of, named_in, names, working_folder
from simulator.specs.loading import (
    Count,
    ExtendingSpec,
    Listed,
    MadeSpec,
    Name,
    NamedSpec,
    Names,
    Spec,
    files_as_they_are,
    load_all,
    load_named,
    load_spec,
    together,
    validate_spec,
)
from simulator.specs.toml_text import key_lines, read_toml

__all__ = [
    "KINDS",
    "Count",
    "CsvRows",
    "ExtendingSpec",
    "Listed",
    "MadeSpec",
    "Name",
    "NamedSpec",
    "Names",
    "Spec",
    "data_roots",
    "ending_error",
    "files_as_they_are",
    "find_spec",
    "is_path",
    "key_lines",
    "lineage",
    "load_all",
    "load_named",
    "load_spec",
    "name_of",
    "named_in",
    "names",
    "read_bytes",
    "read_toml",
    "replacing",
    "resolve",
    "together",
    "validate_spec",
    "working_folder",
    "write_text",
]
