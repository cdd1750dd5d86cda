"""Reading data files: what is accepted, and that every refusal says where and what to write instead."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import Field

import simulator
from simulator.errors import FEW, SpecError, UnknownNameError
from simulator.hardware.link import load_link
from simulator.plan.plan import Plan
from simulator.registry import Family
from simulator.schedules import SCHEDULES
from simulator.specs import (
    Count,
    Name,
    NamedSpec,
    Names,
    Spec,
    data_roots,
    files_as_they_are,
    find_spec,
    key_lines,
    load_all,
    load_named,
    load_spec,
    names,
    read_toml,
    validate_spec,
)
from simulator.studies.families import FAMILIES
from simulator.units import Bytes, BytesPerSecond, Seconds


class Part(Spec):
    size: Bytes
    label: Name


class Thing(NamedSpec):
    count: Count
    speed: BytesPerSecond
    latency: Seconds = 0.0
    ready: bool = True
    ratio: float = 1.0
    tags: Names = ()
    parts: tuple[Part, ...] = Field(default=(), strict=False)


GOOD = 'name = "x"\ncount = 8\nspeed = "400 Gb/s"\ntags = ["a", "b"]\n'


def refusal(folder: Path, text: str | bytes) -> str:
    path = folder / "thing.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load_spec(path, Thing)
    return str(caught.value)


def test_a_good_file_gives_si_values(here: Path) -> None:
    (here / "thing.toml").write_text(GOOD)
    thing = load_spec(here / "thing.toml", Thing)
    assert ("x", 8, 5e10, ("a", "b")) == (thing.name, thing.count, thing.speed, thing.tags)


def test_values_are_frozen_and_hashable(here: Path) -> None:
    (here / "thing.toml").write_text(GOOD)
    thing = load_spec(here / "thing.toml", Thing)
    assert {thing} == {load_spec("thing.toml", Thing)}
    with pytest.raises(ValueError):
        thing.count = 9  # type: ignore[misc]


def test_unchanged_files_are_read_once_and_changed_ones_again(here: Path) -> None:
    path = here / "thing.toml"
    path.write_text(GOOD)
    first = load_spec(path, Thing)
    assert first is load_spec(path, Thing)
    path.write_text(GOOD.replace("count = 8", "count = 16"))
    assert 16 == load_spec(path, Thing).count


def test_a_relative_path_is_not_taken_from_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("one", 1), ("two", 2)):
        (here / name).mkdir()
        (here / name / "thing.toml").write_text(GOOD.replace("count = 8", f"count = {count}"))
        os.utime(here / name / "thing.toml", ns=(10**18, 10**18))
    found = []
    for name in ("one", "two"):
        monkeypatch.chdir(here / name)
        found.append(load_spec("thing.toml", Thing).count)
    assert [1, 2] == found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('count = "8"', 'thing.toml, line 2: count = "8": expected a whole number such as 8, got text'),
        ("count = 8.0", "thing.toml, line 2: count = 8.0: expected a whole number such as 8, got 8 as a fraction: write 8"),
        ("count = true", "thing.toml, line 2: count = true: expected a whole number such as 8, got true or false"),
        ("count = 0", "thing.toml, line 2: count = 0: expected at least 1"),
        ("count = -3", "thing.toml, line 2: count = -3: expected at least 1"),
        ("count = 8\nready = 1", "thing.toml, line 3: ready = 1: expected true or false, got a whole number"),
        ("count = 8\nlatency = 2", "thing.toml, line 3: latency = 2: expected a time with its unit, such as "
         '"2 us", got the bare number 2'),
        ('count = 8\nlatency = "2 GB"', 'thing.toml, line 3: latency = "2 GB": expected a time such as "2 us", '
         "got a size ('2 GB')"),
        ('count = 8\nlatency = "-2 us"', 'thing.toml, line 3: latency = "-2 us": expected a time above zero, '
         "got -2 us"),
        ("count = 8\nratio = nan", "thing.toml, line 3: ratio = nan: expected a finite number"),
        ("count = 8\nratio = inf", "thing.toml, line 3: ratio = inf: expected a finite number"),
        ('count = 8\ntags = "a"', 'thing.toml, line 3: tags = "a": expected a list in [ ], got text'),
        ("count = 8\ntags = [1]", "thing.toml, line 3: tags.0 = 1: expected text in quotes, got a whole number"),
        ("count = 8\nsources = 3", "thing.toml, line 3: sources = 3: expected a table, got a whole number"),
        ("count = 1" + "0" * 60, "thing.toml, line 2: count = a number of about 61 digits: expected at most "
         "1000000000"),
        ("count = 1000000001", "thing.toml, line 2: count = 1000000001: expected at most 1000000000"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_line_and_rule(here: Path, line: str, message: str) -> None:
    assert message == refusal(here, f'name = "x"\n{line}\nspeed = "1 GB/s"\n')


@pytest.mark.parametrize(
    ("sizes", "rule"), [("[]", "1 or more in the list, got 0"), ("[1, 2, 3]", "2 or fewer in the list, got 3")]
)
def test_a_list_of_too_few_or_too_many_is_told_so(sizes: str, rule: str) -> None:
    class Some(Spec):
        sizes: tuple[int, ...] = Field(strict=False, min_length=1, max_length=2)

    with pytest.raises(SpecError, match=f": expected {rule}"):
        validate_spec(tomllib.loads(f"sizes = {sizes}"), Some, "some.toml")


def test_a_bandwidth_given_as_a_size_names_the_right_unit(here: Path) -> None:
    text = GOOD.replace("400 Gb/s", "3.35 TB")
    expected = (
        'thing.toml, line 3: speed = "3.35 TB": expected a bandwidth such as "3.35 TB/s", got a size (\'3.35 TB\')'
    )
    assert expected == refusal(here, text)


def test_an_unknown_key_offers_the_nearest(here: Path) -> None:
    expected = (
        'thing.toml, line 5: latancy = "1 us": unknown key. Did you mean latency? Known: aliases, count, latency, '
        "name, notes, parts, ratio, ready, sources, speed, tags"
    )
    assert expected == refusal(here, GOOD + 'latancy = "1 us"\n')


def test_an_unknown_key_of_an_inner_table_offers_that_tables_keys(here: Path) -> None:
    text = GOOD + '[[parts]]\nsize = "1 GB"\nlabel = "a"\n\n[[parts]]\nsize = "1 GB"\nlable = "b"\n'
    expected = (
        "thing.toml, line 9: missing key parts.1.label\n"
        'thing.toml, line 11: parts.1.lable = "b": unknown key. Did you mean label? Known: label, size'
    )
    assert expected == refusal(here, text)


def test_all_errors_of_a_file_come_together_in_its_order(here: Path) -> None:
    text = 'name = "x"\nlatency = "1 GB"\ncount = "8"\nbogus = 1\n'
    lines = refusal(here, text).splitlines()
    assert ["thing.toml: missing key speed", "thing.toml, line 2", "thing.toml, line 3", "thing.toml, line 4"] == [
        lines[0],
        *(line.split(":")[0] for line in lines[1:]),
    ]


def test_missing_keys_of_a_place_are_one_message(here: Path) -> None:
    assert "thing.toml: missing keys count, speed" in refusal(here, 'name = "x"\n').splitlines()


def test_a_flood_of_errors_is_cut(here: Path) -> None:
    lines = refusal(here, GOOD + "\n".join(f"key{i} = 1" for i in range(200))).splitlines()
    assert (31, "... and 170 more") == (len(lines), lines[-1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count = = 8\n", "thing.toml, line 1: is no TOML: Invalid value"),
        ('{"name": "x"}', "thing.toml, line 1: is no TOML: Invalid statement. It looks like JSON, which dtsim import and --model read"),
        ('name = "x"\nname = "y"\n', "thing.toml, line 2: is no TOML: Cannot overwrite a value"),
        ("count = " + "9" * 5000, "thing.toml: is no TOML that can be read: a number is too long"),
        ("a = " + "[" * 50_000, "thing.toml: is no TOML that can be read: nested too deeply"),
        (b"\xff\xfe\x00\x01", "thing.toml: is no text file (byte 0 is not UTF-8); expected TOML"),
        (b"x" * (2**20 + 1), "thing.toml: is larger than 1 MiB; expected a small TOML file"),
    ],
    ids=["syntax", "JSON", "twice", "long number", "deep", "binary", "large"],
)  # fmt: skip
def test_what_is_no_toml_is_refused_in_one_line(here: Path, text: str | bytes, message: str) -> None:
    assert message == refusal(here, text)


def test_binary_with_zero_bytes_is_refused(here: Path) -> None:
    assert refusal(here, b"\x00\x01\x02").startswith("thing.toml, line 1: is no TOML")


def test_a_directory_and_a_missing_file_are_refused(here: Path) -> None:
    (here / "folder.toml").mkdir()
    with pytest.raises(SpecError, match=r"^folder.toml: is a directory; expected a TOML file$"):
        load_spec("folder.toml", Thing)
    with pytest.raises(SpecError, match=r"^none.toml: cannot be read \(No such file or directory\)$"):
        load_spec("none.toml", Thing)
    with pytest.raises(SpecError, match="is a directory"):
        read_toml(here)
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec("a\0b.toml", Thing)


def test_a_byte_order_mark_and_windows_line_ends_are_read(here: Path) -> None:
    (here / "thing.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert 8 == load_spec("thing.toml", Thing).count


def test_a_dict_is_checked_as_a_file_is() -> None:
    data = {"name": "x", "count": 8, "speed": 1e9}
    assert 1e9 == validate_spec(data, Thing, "--set", from_file=False).speed
    with pytest.raises(SpecError, match=r"^--set: speed = 1000000000.0: expected a bandwidth with its unit"):
        validate_spec(data, Thing, "--set")
    with pytest.raises(SpecError, match=r"^--set: expected a table of keys, got a list$"):
        validate_spec([1], Thing, "--set")  # type: ignore[arg-type]


def test_a_dict_read_from_a_file_is_refused_with_its_lines(here: Path) -> None:
    (here / "thing.toml").write_text(GOOD.replace("8", "-8"))
    with pytest.raises(SpecError, match=r"^thing.toml, line 2: count = -8: expected at least 1$"):
        validate_spec(read_toml("thing.toml"), Thing, "thing.toml")


def test_lines_are_found_in_every_form_of_key() -> None:
    text = """\
# a = 0
a = [
  1, # b = 3
  2,
]
b."c d".e = { f = 1 }
s = '''
t = 1
'''
[table.inner]
x = "[not a table]"
[[list]]
y = 1
[[list]]
[list.sub]
z = 1
"""
    expected = {
        ("a",): 2, ("b", "c d", "e"): 6, ("s",): 7, ("table", "inner"): 10, ("table", "inner", "x"): 11,
        ("list", 0): 12, ("list", 0, "y"): 13, ("list", 1): 14, ("list", 1, "sub"): 15, ("list", 1, "sub", "z"): 16,
    }  # fmt: skip
    assert expected == key_lines(text)


@pytest.mark.parametrize("name", ["a100_80gb_sxm", "A100-80GB-SXM", "a100 80gb sxm", "A100"])
def test_names_are_found_whatever_their_spelling(name: str) -> None:
    assert "a100_80gb_sxm" == find_spec("gpus", name).stem


def test_numbers_in_names_stay_apart() -> None:
    found = [find_spec("models", name).stem for name in ("GPT-3 1.3B", "gpt3-13b", "gpt2-1.5b", "Llama-3.1-405B")]
    assert ["gpt3_1_3b", "gpt3_13b", "gpt2_1_5b", "llama3_1_405b"] == found


def test_the_working_directory_comes_first(here: Path) -> None:
    own = here / "hardware_specs" / "links"
    own.mkdir(parents=True)
    (own / "nvlink3.toml").write_text("")
    (own / "my_link.toml").write_text("")
    assert own / "nvlink3.toml" == find_spec("links", "nvlink3")
    assert own / "my_link.toml" == find_spec("links", "My-Link")
    assert {"my_link", "nvlink3", "nvlink4"} <= set(names("links"))
    assert here == data_roots()[0]


def test_a_name_found_before_is_looked_up_anew_when_a_file_comes_changes_or_goes(here: Path) -> None:
    own = here / "hardware_specs" / "links"
    shipped = load_link("nvlink3")
    assert shipped is load_link("nvlink3")
    own.mkdir(parents=True)
    text = find_spec("links", "nvlink3").read_text()
    (own / "nvlink3.toml").write_text(text.replace("notes = ", "# notes = "))
    mine = load_link("nvlink3")
    assert (mine.notes, shipped.notes) == (None, "A100, 12 links behind NVSwitch.")
    (own / "nvlink3.toml").write_text(text)
    assert load_link("nvlink3").notes == shipped.notes
    (own / "nvlink3.toml").unlink()
    assert shipped is load_link("nvlink3")


def test_who_asks_for_one_state_of_all_files_gets_it(here: Path) -> None:
    own = here / "hardware_specs" / "links"
    own.mkdir(parents=True)
    text = find_spec("links", "nvlink3").read_text()
    (own / "nvlink3.toml").write_text(text)
    with files_as_they_are():
        first, again = load_link("nvlink3"), load_link("nvlink3")
        (own / "nvlink3.toml").write_text(text.replace("notes = ", "# notes = "))
        assert first is again is load_link("nvlink3")
    assert load_link("nvlink3").notes is None


def test_a_path_is_taken_as_it_is(here: Path) -> None:
    (here / "my.toml").write_text(GOOD)
    assert Path("my.toml") == find_spec("gpus", "my.toml")
    assert "x" == load_named("gpus", "./my.toml", Thing).name
    with pytest.raises(SpecError, match=r"^no/such/file: no such file$"):
        find_spec("gpus", "no/such/file")


def test_a_copy_that_bears_its_firsts_name_is_refused(here: Path) -> None:
    """Found by the name of its file, it would be called by that inside, and be taken for what was measured."""
    folder = here / "hardware_specs" / "gpus"
    folder.mkdir(parents=True)
    (folder / "y.toml").write_text(GOOD)
    with pytest.raises(
        SpecError, match=r'y\.toml: name = "x", but the file is called y\.toml, .* Way out: name = "y"$'
    ):
        load_named("gpus", "y", Thing)
    (folder / "y.toml").write_text(GOOD.replace('"x"', '"y"', 1))
    assert "y" == load_named("gpus", "Y", Thing).name


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"^no model 'llama3_9b'. Did you mean 'llama3_8b'\? Nearest: (\w+, ){2}\w+; all: dtsim list models$",
    ):
        find_spec("models", "llama3_9b")
    for name in ("", "-", "a\0b", "x" * 5000, ".."):
        with pytest.raises(UnknownNameError):
            find_spec("models", name)
    with pytest.raises(UnknownNameError, match=r"^no kind of data file 'gpu'. Did you mean 'gpus'\?"):
        names("gpu")


def test_every_family_is_listed_under_the_kind_that_its_messages_name() -> None:
    found = []
    for module in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if module.ispkg:
            found += [one for one in vars(importlib.import_module(module.name)).values() if isinstance(one, Family)]
    assert len(found) >= len(FAMILIES)
    for family in found:
        module_name, name = FAMILIES[family.listed]
        assert family is getattr(importlib.import_module(module_name), name)


@pytest.mark.parametrize("kind", FAMILIES)
def test_many_members_of_a_family_are_shown_by_their_list(kind: str) -> None:
    module, name = FAMILIES[kind]
    family = getattr(importlib.import_module(module), name)
    with pytest.raises(UnknownNameError) as raised:
        family.get("no such thing")
    shown = re.search(r"(Known|Nearest): (.*)$", str(raised.value))
    assert shown
    if len(family.members) > FEW:
        assert re.fullmatch(rf"(\w+, ){{2}}\w+; all: dtsim list {kind}", shown[2])
    else:
        assert shown[2] == ", ".join(family.members)


def test_a_name_like_an_alias_offers_the_alias() -> None:
    with pytest.raises(UnknownNameError, match=r"^no schedule '1f2b'. Did you mean '1f1b'\? "):
        SCHEDULES.get("1f2b")


def test_errors_of_several_files_come_together(here: Path) -> None:
    own = here / "workloads" / "published"
    own.mkdir(parents=True)
    for name in ("a", "b"):
        (own / f"{name}.toml").write_text(GOOD.replace("8", "0"))
    with pytest.raises(SpecError) as caught:
        load_all("published", Thing)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("workloads/published/")]
    rule = "line 2: count = 0: expected at least 1"
    assert [f"workloads/published/a.toml, {rule}", f"workloads/published/b.toml, {rule}"] == lines[:2]


def test_a_value_that_may_be_of_two_kinds_is_named_by_its_key(tmp_path: Path) -> None:
    from simulator.job import load_job

    path = tmp_path / "job.toml"
    path.write_text(
        '[workload]\nmodel = "gpt2_124m"\n[cluster]\nname = "a100_x8"\n'
        "[checkpoint]\ninterval = 5\n[reliability]\nrestart = {drain = 3}\n"
    )
    with pytest.raises(SpecError) as refused:
        load_job(path)
    assert "line 6: checkpoint.interval = 5: expected a time with its unit" in str(refused.value)
    assert "line 8: reliability.restart.drain = 3: expected a time with its unit" in str(refused.value)
    assert "[" not in str(refused.value)


def test_a_value_of_several_kinds_is_told_once_with_the_rule_of_each() -> None:
    with pytest.raises(SpecError) as refused:
        validate_spec({"parameter_offload": "cpu", "zero_stage": "x"}, Plan, "here")
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    told = next(line for line in lines if "parameter_offload" in line)
    assert "expected a number such as 1.5, got text; or expected one of 'host', 'nvme'" in told
