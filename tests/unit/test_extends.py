"""Files that extend others: what is inherited, where a name is looked for, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.plan.framework import Framework, load_framework
from simulator.specs import data_roots, find_spec, lineage, resolve
from tests.command import Dtsim

SHIPPED = data_roots()[-1] / "hardware_specs" / "frameworks"


def write(name: str, text: str) -> Path:
    """Write a profile of the working directory."""
    path = Path("hardware_specs/frameworks", f"{name}.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'name = "{name}"\n{text}', encoding="utf-8")
    return path


def refusal(name: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_framework(name)
    return str(caught.value)


def test_what_a_profile_does_not_say_is_as_in_the_one_it_extends(here: Path) -> None:
    write("mine", 'extends = "megatron_core"\nrecompute = "full"\nbucket_size = "1 MiB"\n')
    mine, core = load_framework("mine"), load_framework("megatron_core")
    changed = {field for field in Framework.model_fields if getattr(mine, field) != getattr(core, field)}

    assert ("full", 2**20) == (mine.recompute, mine.bucket_size)
    assert {"name", "aliases", "notes", "extends", "recompute", "bucket_size", "sources"} == changed


def test_a_name_and_its_aliases_are_a_files_own(here: Path) -> None:
    write("mine", 'extends = "megatron_core"\n')
    assert load_framework("megatron_core").aliases
    assert () == load_framework("mine").aliases
    assert SHIPPED / "megatron_core.toml" == find_spec("frameworks", "mcore")


def test_a_source_goes_with_its_key(here: Path) -> None:
    write(
        "one",
        'extends = "megatron_core"\nrecompute = "full"\np2p = "blocking"\n[sources]\np2p = "page 1"\n"*" = "page 2"\n',
    )
    write("two", 'extends = "one"\np2p = "latency"\n[sources]\nrecompute = "page 3"\n')
    core, one, two = (load_framework(name).sources for name in ("megatron_core", "one", "two"))

    assert ("page 1", "page 2", core["workspace"]) == (one["p2p"], one["recompute"], one["workspace"])
    assert "p2p" not in two, "a new value does not stand with the source of the old one"
    assert ("page 3", core["workspace"]) == (two["recompute"], two["workspace"])
    assert "*" not in one


def test_files_of_a_user_may_extend_each_other_and_may_repeat(here: Path) -> None:
    write("one", 'extends = "megatron_core"\nrecompute = "full"\n')
    write("two", 'extends = "one"\nrecompute = "full"\ndropout = true\n')
    assert ("full", True) == (load_framework("two").recompute, load_framework("two").dropout)


def test_a_changed_file_changes_those_that_extend_it(here: Path) -> None:
    write("one", 'extends = "megatron_core"\nrecompute = "full"\n')
    write("two", 'extends = "one"\n')
    before = load_framework("two").recompute
    write("one", 'extends = "megatron_core"\nrecompute = "selective"\n')
    assert ("full", "selective") == (before, load_framework("two").recompute)


def test_a_shipped_profile_never_extends_a_users_file(here: Path) -> None:
    before = load_framework("nemo")
    write("nemo_2024", 'extends = "nemo_2024"\np2p = "blocking"\n')
    assert "blocking" == load_framework("nemo_2024").p2p
    assert before == load_framework("nemo")


def test_a_file_that_extends_its_own_name_means_the_shipped_one(here: Path) -> None:
    path = write("megatron_core", 'extends = "megatron_core"\nrecompute = "full"\n')
    files = [Path(file.path) for file in lineage(path, "frameworks")]
    assert [path.resolve(), SHIPPED / "megatron_core.toml"] == files[:2]
    assert "full" == load_framework("megatron_core").recompute


def test_a_file_given_by_its_path_extends_one_beside_it(here: Path) -> None:
    Path("base.toml").write_text('name = "base"\nextends = "megatron_core"\nrecompute = "full"\n')
    Path("mine.toml").write_text('name = "mine"\nextends = "base"\n')
    assert "full" == load_framework("./mine.toml").recompute


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'extends = "megatron_cor"',
            "mine.toml, line 2: extends = \"megatron_cor\": no framework 'megatron_cor'. Did you mean 'megatron_core'?",
        ),
        ('extends = "mcore"', "no framework 'mcore'"),
        ('extends = "../frameworks/mine"', "no framework '../frameworks/mine'"),
        ('notes = "x"\nextends = ["a", "b"]', "line 3: extends: expected the name of one file in quotes, got a list"),
        ("extends = 3", "line 2: extends: expected the name of one file in quotes, got a whole number"),
        ('extends = ""', "line 2: extends: expected the name of one file in quotes, got nothing"),
        ('extends = "mine"', "circle, but mine -> mine"),
        ('extends = "megatron_core"\nrecompute = "all"', 'mine.toml, line 3: recompute = "all": expected one of'),
        (
            'extends = "megatron_core"\nrecompte = "full"',
            'line 3: recompte = "full": unknown key. Did you mean recompute?',
        ),
        ('extends = "megatron_core"\nsources = "a book"', 'line 3: sources = "a book": expected a table'),
        (
            'extends = "megatron_core"\nfuses_experts = true\njoined_expert_gate = false',
            "mine.toml: fuses_experts applies",
        ),
        ('notes = "whole"', "and 18 more\nhardware_specs/frameworks/mine.toml: Way out: extends = "),
        ('extends = "megatron_core"\nweighs_rows_in_fp32 = true', "mine.toml: the router's weights scale either"),
        ('extends = "megatron_core"\nreuse_distance = 8', "mine.toml: reuse_distance is about weight tensors"),
    ],
)
def test_a_refusal_names_file_line_and_way_out(text: str, expected: str, here: Path) -> None:
    write("mine", f"{text}\n")
    assert expected in refusal("mine")


def test_a_bad_key_is_told_at_the_file_that_says_it(here: Path) -> None:
    write("one", 'extends = "megatron_core"\n\nbucket_size = 8\n')
    write("two", 'extends = "one"\ndropout = true\n')
    message = refusal("two")
    assert "one.toml, line 4: bucket_size = 8" in message
    assert "two.toml" not in message


def test_circles_and_long_rows_are_refused(here: Path) -> None:
    write("one", 'extends = "two"\n')
    write("two", 'extends = "one"\n')
    assert "must not extend each other in a circle, but one -> two -> one. Way out" in refusal("one")
    for number in range(20):
        write(f"row_{number}", f'extends = "row_{number + 1}"\n')
    write("row_20", 'extends = "megatron_core"\n')
    assert "at most 16 files may extend one another in a row" in refusal("row_0")


def test_only_profiles_extend(here: Path, dtsim: Dtsim) -> None:
    path = Path("hardware_specs/gpus/mine.toml")
    path.parent.mkdir(parents=True)
    path.write_text('name = "mine"\nextends = "h100_80gb_sxm"\n')
    code, _, error = dtsim("show", "gpus", "mine")
    assert 2 == code
    assert 'line 2: extends = "h100_80gb_sxm": unknown key' in error


def test_show_says_whose_a_value_is(here: Path, dtsim: Dtsim) -> None:
    write("mine", 'extends = "nemo"\nrecompute = "full"\n[sources]\n"*" = "our runs"\n')
    _, out, _ = dtsim("show", "frameworks", "mine")
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert lines["recompute"].startswith("recompute full [")
    assert "from" not in lines["recompute"]
    assert lines["gradient_dtype"].endswith("from nemo_2024")
    assert lines["goes"].startswith("goes back to nemo, nemo_25_02, nemo_2024, megatron_core, ")


def test_show_as_json_has_all_values_and_whose_they_are(here: Path, dtsim: Dtsim) -> None:
    write("mine", 'extends = "nemo"\nrecompute = "full"\n[sources]\n"*" = "our runs"\n')
    _, out, _ = dtsim("show", "frameworks", "mine", "--json")
    answer = json.loads(out)
    assert ("full", "our runs") == (answer["facts"]["recompute"], answer["sources"]["recompute"])
    assert "recompute" not in answer["inherited"]
    assert "nemo_2024" == answer["inherited"]["gradient_dtype"]
    assert set(answer["inherited"]) <= set(answer["facts"])


def test_a_file_that_says_nothing_is_shown_as_such(here: Path, dtsim: Dtsim) -> None:
    path = Path("hardware_specs/calibrations/mine.toml")
    path.parent.mkdir(parents=True)
    path.write_text("")
    code, out, _ = dtsim("show", "calibrations", "mine")
    assert 0 == code
    assert "calibration mine (hardware_specs/calibrations/mine.toml)" in out


def test_all_that_is_stated_is_resolved_once() -> None:
    found = resolve(lineage(SHIPPED / "bigscience.toml", "frameworks"))
    assert found.files[0] == found.stated_in["launch_wait"]
    assert set(found.data) == set(found.stated_in)
