"""The table of versions of docs/install.md: how a report becomes a row, and where the row goes."""

import matrix

REPORT = """<testsuites><testsuite>
<testcase name="good"/><testcase name="absent"><skipped message="no mm"/></testcase>
<testcase name="bad"><failure message="assert 1 == 2 | a&#10;more">trace</failure></testcase>
<testcase name="broken"><error message="no fixture">trace</error></testcase>
</testsuite></testsuites>"""


def test_a_report_becomes_a_row_that_replaces_the_one_of_its_cell(tmp_path, monkeypatch):
    page = tmp_path / "install.md"
    page.write_text(f"# Versions\n\n{matrix.BEGIN}{matrix.END}\nafter\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    (tmp_path / "tests.xml").write_text(REPORT)
    found = matrix.counted(tmp_path / "tests.xml")
    assert found == ["1", "2", "`bad`: assert 1 == 2 \\| a more; `broken`: no fixture"]
    for version, torch in (("3.13.0", "2.14.1, newest"), ("3.10.13", "2.6.0"), ("3.13.1", "2.15.0, newest")):
        matrix.write([f"{version}, pip", torch, "core", *found])
    rows = [line.split(" | ")[0] for line in page.read_text().splitlines()]
    assert rows == ["# Versions", "", matrix.BEGIN.strip(), "| Python, by", "| ---", "| 3.10.13, pip",
                    "| 3.13.1, pip", matrix.END.strip(), "", "after"]  # fmt: skip


def test_every_row_of_the_page_is_of_a_cell():
    table = matrix.PAGE.read_text().partition(matrix.BEGIN)[2].partition(matrix.END)[0]
    names = {cell.name for cell in matrix.CELLS}
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert {matrix.name_of([row[0].strip("| "), *row[1:]]) for row in rows} <= names
