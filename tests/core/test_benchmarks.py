"""The benchmarks' page, and the benchmark of the 2020 tables on a tiny input."""

import json
import math

import pytest

from benchmarks import extremes, report, tarnawski2020
from benchmarks.__main__ import ALL, BY_NAME
from benchmarks.report import Report, markdown, with_section
from inputs import tarnawski

FILE = "OperatorGraphs/small.json"
PAGE = "# Benchmarks\n\nHello.\n\n## One\n\nfirst\n\n### Part\n\n## Two\n\nsecond\n"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A quick report whose files end up in a folder of the test."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    return Report("small", "Small things", "Measured. One run.", quick=True)


def test_a_section_replaces_the_one_with_its_heading():
    page = with_section(PAGE, "One", "third")
    assert page == "# Benchmarks\n\nHello.\n\n## One\n\nthird\n\n## Two\n\nsecond\n"
    assert with_section(page, "One", "third") == page


def test_a_new_section_comes_last():
    assert with_section(PAGE, "Three", "third") == PAGE + "\n## Three\n\nthird\n"


def test_numbers_are_aligned_in_tables_and_bars_are_kept():
    table = markdown(("step (ms)", "heft"), [("x|y", "1.5 ms")])
    assert table == "| Step (ms) | heft |\n| --- | ---: |\n| x\\|y | 1.5 ms |"


def test_a_report_says_how_it_was_made_and_links_its_files(made, tmp_path):
    made.title("Part")
    made.figure("speed", "3 ms", "4 ms")
    made.picture("<svg/>", "A picture")
    made.numbers(("a",), [(1,), (2,)])
    made.write(132.0, 0.5)
    page = (tmp_path / "build" / "benchmarks.md").read_text()
    assert "## Small things\n\nMeasured. One run. `python -m benchmarks --quick small`" in page
    for part in ("other programs kept 0.5 cores busy", "2.2 minutes", "| speed | 3 ms | 4 ms |"):
        assert part in page
    assert (tmp_path / "build" / "benchmarks" / "small.svg").read_text() == "<svg/>"
    assert (tmp_path / "build" / "benchmarks" / "small.csv").read_text() == "a\n1\n2\n"
    assert "![A picture](benchmarks/small.svg)" in page
    assert "(benchmarks/small.csv)" in page


def test_figures_without_raw_numbers_of_their_own_become_these(made, tmp_path):
    made.figure("speed", "3 ms", "4 ms")
    made.write(1.0, 0.0)
    written = (tmp_path / "build" / "benchmarks" / "small.csv").read_text()
    assert written == "what,value,target\nspeed,3 ms,4 ms\n"


def test_a_benchmark_without_its_inputs_says_so_and_leaves_the_page_alone(
    made, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(tarnawski2020, "SHARED", tmp_path)
    with pytest.raises(SystemExit) as ended:
        tarnawski2020.main(made)
    assert not ended.value.code
    assert "needs the paper's tables" in capsys.readouterr().out
    assert not (tmp_path / "build").exists()


def test_a_huge_problem_whose_command_fails_keeps_its_row(monkeypatch, made, tmp_path):
    failed = ("chain", 100_000, "pcie-4", "heft", math.nan, 3.0, 4096, math.nan, math.nan, "failed")
    solved = ("chain", 1, "pcie-4", "heft", 0.5, 2.0, 200, 1500.0, 1500.0, "")
    monkeypatch.setattr(extremes, "_rows", lambda limit_s, quick: iter([solved, failed]))
    extremes.main(made)
    made.write(1.0, 0.0)
    page = (tmp_path / "build/benchmarks.md").read_text(encoding="utf-8")
    assert "| chain, 1 op | pcie-4 | `heft` | 0.5 | 2.0 | 200 | 1.50 | 1.50 |  |" in page
    assert "| chain, 100,000 ops | pcie-4 | `heft` |  | 3.0 | 4,096 |  |  | failed |" in page
    raw = (tmp_path / "build/benchmarks/small.csv").read_text(encoding="utf-8").splitlines()
    assert raw[1] == "chain,1,pcie-4,heft,0.5,2.0,200,1500.0,1500.0,"


def test_every_benchmark_is_named_once():
    folder = report.Path(report.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")}
    assert len({*ALL, *BY_NAME}) == len(ALL) + len(BY_NAME)
    assert {*ALL, *BY_NAME} == modules - {"__init__", "__main__", "report", "staged", "synthetic"}


# The CPU has one op of 10 ms, between two of 1.5 ms on an accelerator.
def test_the_2020_tables_are_reported_next_to_those_of_the_paper(made, tmp_path, monkeypatch):
    for folder in ("throughput", "latency", "expert"):
        (tmp_path / "workloads" / "dnn-partitioning" / folder).mkdir(parents=True)
    inputs = tmp_path / "workloads" / "dnn-partitioning"
    for objective in ("throughput", "latency"):
        (inputs / objective / "operator_small.json").write_text(json.dumps(tarnawski()))
    split = {"fpgas": [{"nodes": [3, 9]}, {"nodes": []}], "cpus": [{"nodes": [5]}]}
    (inputs / "expert" / "operator_small.json").write_text(json.dumps(split))
    tables = {
        "table1_throughput": _paper("tps", tarnawski2020._TABLE_1),
        "table4_latency": _paper("latency", tarnawski2020._TABLE_4),
    }
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "tarnawski2020_tables.json").write_text(json.dumps(tables))
    monkeypatch.setattr(tarnawski2020, "SHARED", tmp_path)
    monkeypatch.setattr(tarnawski2020, "QUICK_S", 600)

    tarnawski2020.main(made)
    made.write(1.0, 0.0)

    page = (tmp_path / "build" / "benchmarks.md").read_text()
    for columns, ours in ((tarnawski2020._TABLE_1, "10.00"), (tarnawski2020._TABLE_4, "13.01")):
        for heading, method, _ in columns:
            if method == "scotch" and heading not in page:
                continue  # Not installed.
            row = page.partition(heading)[2].partition("| small | ")[2].split()
            assert row[:3] == ["2.00", "|", ours]


def _paper(value, columns):
    """Return a row of the paper's table: 2 ms in every column, found in 1 s."""
    row = {value: 2.0, "runtime": {"raw": "1s"}}
    return {"small": {"file": FILE, "algorithms": dict.fromkeys((c for _, c, _ in columns), row)}}
