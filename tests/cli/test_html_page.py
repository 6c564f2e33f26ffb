"""Pages for a browser: one file, no network, and nothing of a topic's name is taken for HTML."""

from __future__ import annotations

from html.parser import HTMLParser

from ister.cli.html_page import Cell, Mark, Page, columns_plot, html_table, line_plot, strip_plot


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)
        for name, value in attrs:
            assert name not in ("src", "href"), value

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_well_formed_and_loads_nothing() -> None:
    page = Page("Audit of <orders>", "not clean", is_good=False, about="a & b")
    page.figures([("records", "1,000")])
    marks = [Mark(0, 10, 5, "first <b>"), Mark(10, 30, 0, "second", "bad")]
    page.section(
        "Plots",
        columns_plot(marks, label="a", ends=("0", "30")),
        strip_plot(marks, label="b", ends=("0", "30")),
        line_plot([(0, 1), (5, 3)], label="c", ends=("0", "5")),
    )
    page.section("Rows", html_table(["what", "count"], "<>", [["<script>", Cell("7", "bad")]]))
    made = page.to_html()
    parser = Balanced()
    parser.feed(made)
    assert parser.open == []
    assert parser.seen.count("svg") == 3
    assert "<script>" not in made
    assert "&lt;orders&gt;" in made
    assert "first &lt;b&gt;" in made
    assert "url(" not in made


def test_a_plot_of_nothing_says_so() -> None:
    for made in (
        columns_plot([], label="a", ends=("", "")),
        strip_plot([], label="a", ends=("", "")),
        line_plot([(0, 1)], label="a", ends=("", "")),
    ):
        assert made == "<p>There is nothing to plot.</p>"
