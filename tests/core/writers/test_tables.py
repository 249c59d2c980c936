"""The CSV table of a plan."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enplace.machine import simulate
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers.table_csv import table_csv
from problems import cluster_of, device_names, plan_of, profile_of


def test_csv_lists_every_op_once_in_the_order_of_its_device(middle):
    rows = list(csv.DictReader(io.StringIO(table_csv(Result(middle)))))
    assert {row["op"]: row["device"] for row in rows} == device_names(middle)
    index = middle.problem.profile.index
    for name in {row["device"] for row in rows}:
        mine = [row for row in rows if row["device"] == name]
        assert [int(row["order"]) for row in mine] == list(range(len(mine)))
        positions = [middle.plan.position[index[row["op"]]] for row in mine]
        assert positions == sorted(positions)
    profile = middle.problem.profile
    for row in rows:
        op = index[row["op"]]
        assert float(row["finish_us"]) == pytest.approx(middle.op_finish_us[op], abs=5e-4)
        assert len(row["finish_us"].partition(".")[2]) == 3
        assert (row["type"], row["scope"]) == (profile.op_types[op], profile.scopes[op])
        assert int(row["weights_bytes"]) == profile.persistent_bytes[op]
    assert sum(int(row["out_bytes"]) for row in rows) == profile.tensor_bytes.sum()


def csv_of(names: list[str], kind: str = "Op") -> str:
    profile = replace(profile_of(dict.fromkeys(names, 10.0)), op_types=(kind,) * len(names))
    problem = Problem(profile, cluster_of(2))
    return table_csv(Result(simulate(problem, plan_of(problem, dict.fromkeys(names, 0)))))


SEPARATORS = ",;\t|: "

ODD_NAMES = st.text("=+-@＝＋－＠,;|:\"' \xa0\u3000a1", min_size=1, max_size=12)


@given(st.lists(ODD_NAMES, min_size=3, max_size=3, unique=True), ODD_NAMES)
@example(["a;=1+1;b", "b", "c"], "t;=HYPERLINK(0)")
@example(['a;"=1+1', "a =1", ' "-1'], ',"" @SUM(A1)')
def test_no_separator_makes_a_formula_of_a_name(names, kind):
    text = csv_of(names, kind)
    for separator in SEPARATORS:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            for cell in row:
                assert not re.match(r'[\s"]*[=+@＝＋＠－-]', cell), cell
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["op"].replace("'", "") for row in rows} == {n.replace("'", "") for n in names}


def test_csv_keeps_a_name_with_separators_in_one_cell():
    lines = csv_of(["a;b", "c|d", 'e"f', "plain/x:0"]).splitlines()
    assert [line.split(",")[0] for line in lines] == ["op", '"a;b"', '"c|d"', '"e""f"', "plain/x:0"]


def test_csv_has_the_columns_for_tables_that_say_something():
    profile = profile_of({"a": 10.0, "b": 10.0})
    problem = Problem(replace(profile, flops=np.array([2.5e12, np.nan])), cluster_of(2))
    said = table_csv(Result(simulate(problem, plan_of(problem, {"a": 0, "b": 0}))))
    assert [row["flops"] for row in csv.DictReader(io.StringIO(said))] == ["2500000000000", ""]
    assert "flops" not in csv_of(["a", "b"])


def test_csv_keeps_odd_names(small):
    rows = list(csv.DictReader(io.StringIO(table_csv(Result(small)))))
    assert {row["op"] for row in rows} == set(small.problem.profile.op_names)
