"""Pages without scripts: sections as cards, bars as boxes instead of letters."""

from __future__ import annotations

from simulator.report.table import Section, Table, bar, sections_html


def test_a_bar_of_letters_is_a_box_on_a_page() -> None:
    table = Table(headings=("part", "", ""), rows=(("run", "75 %", bar(0.75, 4)), ("rest", "0 %", "")), left=(0, 2))
    page = sections_html([Section(title="where the time goes", table=table)])
    assert not set("█▏▎▍▌▋▊▉") & set(page)
    assert 'class=bar style="width:1.5em"' in page, "half an em for each of three letters"
    assert 1 == page.count("class=bar"), "nothing is no box"


def test_every_section_is_an_element_of_its_own() -> None:
    page = sections_html([Section(title="one"), Section(title="two", lines=("a < b",))])
    assert 2 == page.count("<section>") == page.count("</section>")
    assert "a &lt; b" in page
