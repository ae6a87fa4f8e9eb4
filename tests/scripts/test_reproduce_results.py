"""The files of results: the headers of their tables, their names and their folder."""

import dataclasses
import sys
from pathlib import Path

import pytest
from comparison_rows import ROWS
from reproduce.launcher import Section, Settings, main
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


def test_a_page_is_written_to_out_under_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {name: Section(name, lambda _: iter([Table("One", of_rows(ROWS), ["1"])])) for name in ("one", "two")}
    options = ["reproduce_x.py", "--out", str(tmp_path), "--as", "other", "--sections"]
    monkeypatch.setattr(sys, "argv", [*options, "one"])
    main("x", "Tables.", Settings, sections)
    assert [path.name for path in tmp_path.iterdir()] == ["x-other.md"]
    monkeypatch.setattr(sys, "argv", [*options, "one,two"])
    with pytest.raises(SystemExit, match="reproduce_x: --as other: takes one section, as in --sections one"):
        main("x", "Tables.", Settings, sections)
