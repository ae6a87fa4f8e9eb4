"""The files of results: the headers of their tables."""

import dataclasses

from comparison_rows import ROWS
from reproduce.results import Table, bullets, markdown, of_rows, results_text

LINE = "Command: `make it`. Seed: 0, 1. Hardware: abacus, 1 core a run. Versions: graphrl 1.0. Date: "


def test_a_single_table_gives_its_title() -> None:
    table = Table("What it is", of_rows(ROWS), ("How.", "", "| a |\n| --- |\n", bullets(["x", "x", "y"])))
    text = f"# What it is\n\n{LINE}2026-01-02.\n\nHow.\n\n| a |\n| --- |\n\n- x\n- y\n"
    assert results_text("A section", [table], "make it") == text


def test_several_tables_say_together_where_they_come_from() -> None:
    later = [dataclasses.replace(row, date="2026-02-03T00:00:00") for row in ROWS]
    tables = [Table("One", of_rows(ROWS), ["1"]), Table("Two", of_rows(later), ["2"], "It is two.")]
    text = f"# A section\n\nIt is two.\n\n{LINE}2026-01-02 to 2026-02-03.\n\n## One\n\n1\n\n## Two\n\n2\n"
    assert results_text("A section", tables, "make it") == text


def test_columns_without_figures_are_left_out() -> None:
    lines = [["x", "-", "1", ""], ["y", "-", "-", ""]]
    assert markdown(["name", "a", "b", "failed"], lines) == "| name | b |\n| --- | ---: |\n| x | 1 |\n| y | - |\n"
