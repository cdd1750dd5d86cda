"""The page of all choices says what is declared, and every declaration is whole."""

from __future__ import annotations

from simulator.options.option import declared
from simulator.options.page import values
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from tests.golden.options_page import PAGE, text


def test_the_page_is_made_of_the_declarations() -> None:
    assert PAGE.read_text() == text()


def test_every_choice_says_what_it_is_and_where_it_belongs() -> None:
    assert [] == [one.name for one in declared(Plan).values() if not (one.doc and one.group and values(one))]


def test_every_default_of_a_framework_is_a_field_of_its_profile() -> None:
    fields = {one.framework_default.field for one in declared(Plan).values() if one.framework_default}

    assert len(fields) > 10
    assert fields <= set(Framework.model_fields)


def test_a_choice_without_a_default_of_its_own_says_what_leaving_it_out_means() -> None:
    silent = [one for one in declared(Plan).values() if one.default is None and one.framework_default is None]

    assert [] == [one.name for one in silent if "left out" not in one.doc and one.name not in NOTHING]


NOTHING = {
    "context_parallel_inner",
    "recompute_layers",
    "recompute_checkpoints",
    "recompute_modules",
    "recompute_policy",
    "secondary_shard_size",
    "activation_offload",
}
"""Choices that are not made when they are left out."""
