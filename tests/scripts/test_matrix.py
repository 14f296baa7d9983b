"""The table of versions of docs/install.md: how a report becomes a row, and where the row goes."""

import pytest

import matrix

REPORT = """<testsuites><testsuite>
<testcase name="good"/><testcase name="absent"><skipped message="no mm"/></testcase>
<testcase name="bad"><failure message="assert 1 == 2 | a&#10;more">trace</failure></testcase>
<testcase name="broken"><error message="no fixture">trace</error></testcase>
</testsuite></testsuites>"""
PAGE = f"# Versions\n\n{matrix.BEGIN}{matrix.END}\nafter\n"


def test_a_report_becomes_counts_and_faults(tmp_path):
    (tmp_path / "tests.xml").write_text(REPORT)
    faults = "`bad`: assert 1 == 2 \\| a more; `broken`: no fixture"
    assert matrix.counted(tmp_path / "tests.xml") == ["1", "2", faults]


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "install.md"
    path.write_text(PAGE)
    monkeypatch.setattr(matrix, "PAGE", path)
    return path


def test_rows_are_replaced_and_stay_in_the_order_of_the_cells(page):
    matrix.write(["3.13.0, pip", "2.14.1", "core", "7", "0", ""])
    matrix.write(["3.10.13, pip", "2.6.0", "all", "9", "1", "a \\| b"])
    matrix.write(["3.13.1, uv", "2.15.0", "core", "8", "0", ""])
    before, table, after = (
        page.read_text().partition(matrix.BEGIN)[0],
        *page.read_text().split(matrix.BEGIN)[1].split(matrix.END),
    )
    assert (before, after) == ("# Versions\n\n", "\nafter\n")
    assert [line.split(" | ")[0] for line in table.splitlines()] == [
        "| Python, by",
        "| ---",
        "| 3.10.13, pip",
        "| 3.13.1, uv",
    ]
    assert "a \\| b" in table


def test_every_row_of_the_page_is_of_a_cell():
    table = matrix.PAGE.read_text().partition(matrix.BEGIN)[2].partition(matrix.END)[0]
    names = {cell.name for cell in matrix.CELLS}
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert {matrix.name_of([row[0].strip("| "), *row[1:]]) for row in rows} <= names
