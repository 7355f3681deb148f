import csv
import html.parser
import io

import numpy as np
import pytest

from tfvmf.evaluation.tables import Page, Picture, Table

# What a class name, a path or a setting may hold.
NASTY = [
    "<script>alert(1)</script>",
    'a "quoted" & <b>bold</b>',
    "one | two",
    "first\nsecond\r\nthird",
    "=1+1",
    "  @SUM(A1)",
    "-2+3",
    "\t=1",
    "**bold** _it_ `code` [link](http://x) $x$ ~~gone~~",
    "100 % of #1 {a}_b^c~d\\e",
]


@pytest.fixture
def table():
    return Table(
        columns=["name", "value", "count"],
        rows=[
            ["plain", -0.12345678, 3],
            ["empty", None, 12],
            ["numpy", np.float32(0.5), np.int64(7)],
        ],
        footer=[["mean", 0.25, None]],
        form=".2f",
        title="Numbers",
    )


def test_markdown(table):
    assert table.markdown().splitlines() == [
        "| name | value | count |",
        "| --- | ---: | ---: |",
        "| plain | -0.12 | 3 |",
        "| empty |  | 12 |",
        "| numpy | 0.50 | 7 |",
        "| **mean** | **0.25** |  |",
    ]


def test_text_for_a_terminal(table):
    assert table.text().splitlines() == [
        "name   value  count",
        "-------------------",
        "plain  -0.12      3",
        "empty            12",
        "numpy   0.50      7",
        "-------------------",
        "mean    0.25",
    ]
    narrow = table.text(width=15).splitlines()
    assert max(map(len, narrow)) <= 15
    assert narrow[7:10] == ["", "name   count", "------------"]


def test_csv_has_six_digits_and_what_stands_beside(table):
    rows = list(csv.reader(io.StringIO(table.csv(beside={"seed": 4}))))
    assert rows == [
        ["name", "value", "count", "seed"],
        ["plain", "-0.123457", "3", "4"],
        ["empty", "", "12", "4"],
        ["numpy", "0.5", "7", "4"],
        ["mean", "0.25", "", "4"],
    ]


def test_latex(table):
    assert table.latex().splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"name & value & count \\",
        r"\midrule",
        r"plain & $-0.12$ & 3 \\",
        r"empty &  & 12 \\",
        r"numpy & 0.50 & 7 \\",
        r"\midrule",
        r"mean & 0.25 &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_alignment_may_be_chosen():
    table = Table(columns=["", "share"], rows=[["a", "50 %"]], align="lr")
    assert "| --- | ---: |" in table.markdown()
    assert '<td class="number">50 %</td>' in table.html()


class Cells(html.parser.HTMLParser):
    """What a browser would show in the cells, and the elements that it would make."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.lasttag == "td" and self.cells:
            self.cells[-1] += data.strip("\n")


@pytest.mark.parametrize("text", NASTY)
def test_cells_are_text_in_html(text):
    parser = Cells()
    parser.feed(Table(columns=["a"], rows=[[text]]).html())
    assert parser.tags <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert parser.cells == [" ".join(text.split())]


@pytest.mark.parametrize("text", NASTY)
def test_cells_are_text_in_csv_and_never_formulas(text):
    _, (cell, beside) = csv.reader(
        io.StringIO(Table(columns=["a"], rows=[[text]]).csv(beside={"b": text}), newline="")
    )
    assert cell == beside
    assert cell.removeprefix("'") == text
    assert not cell.lstrip().startswith(("=", "+", "-", "@"))


def test_numbers_stay_numbers_in_csv():
    _, cells = csv.reader(io.StringIO(Table(columns=["a", "b"], rows=[[-0.5, "-1e-3"]]).csv()))
    assert cells == ["-0.5", "-1e-3"]


@pytest.mark.parametrize("text", NASTY)
def test_a_cell_is_one_cell_in_markdown(text):
    lines = Table(columns=["a", "b"], rows=[[text, 1]]).markdown().splitlines()
    assert len(lines) == 3
    assert lines[2].replace(r"\|", "").count("|") == 3


def test_markup_is_escaped_in_markdown():
    written = Table(columns=["a"], rows=[["**x** _y_ `z` <b> [l](u) f_res a[1] $m$"]]).markdown()
    assert r"\*\*x\*\* \_y\_ \`z\` \<b> [l\](u) f_res a[1] \$m\$" in written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("100 % of #1 {a}_b^c~d", r"100 \% of \#1 \{a\}\_b\textasciicircum{}c\textasciitilde{}d"),
        ("a & b \\ c", r"a \& b \textbackslash{} c"),
        ("x < y | z > 1", r"x \textless{} y \textbar{} z \textgreater{} 1"),
    ],
)
def test_cells_are_text_in_latex(text, written):
    assert f"{written} \\\\" in Table(columns=["a"], rows=[[text]]).latex()


def test_a_page_has_paragraphs_headings_tables_and_pictures(table):
    page = Page(
        "Title <1>", ["# not a heading", "- no list\nat all", table, Picture("a b.png", "A")]
    )
    text = page.markdown()
    assert text.startswith(
        "# Title \\<1>\n\n\\# not a heading\n\n\\- no list at all\n\n## Numbers\n\n|"
    )
    assert text.endswith("\n\n![A](a%20b.png)\n")
