"""The benchmark of the 2020 tables, on a tiny input."""

import json
import sys

from benchmarks import tarnawski2020
from inputs import tarnawski

FILE = "OperatorGraphs/small.json"


# The CPU has one op of 10 ms, between two of 1.5 ms on an accelerator.
def test_the_2020_tables_are_printed_next_to_those_of_the_paper(tmp_path, monkeypatch, capsys):
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
    monkeypatch.setattr(sys, "argv", ["tarnawski2020", str(inputs), "--seconds", "600"])

    tarnawski2020.main()

    printed = capsys.readouterr().out
    for columns, ours in ((tarnawski2020._TABLE_1, "10.00"), (tarnawski2020._TABLE_4, "13.01")):
        for heading, method, _ in columns:
            if method == "scotch" and heading not in printed:
                continue  # Not installed.
            row = printed.partition(heading)[2].partition("small")[2].split()
            assert row[:2] == ["2.00", ours]


def _paper(value, columns):
    """Return a row of the paper's table: 2 ms in every column, found in 1 s."""
    row = {value: 2.0, "runtime": {"raw": "1s"}}
    return {"small": {"file": FILE, "algorithms": dict.fromkeys((c for _, c, _ in columns), row)}}
