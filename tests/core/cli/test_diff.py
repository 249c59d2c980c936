"""``enplace diff`` shows what changes from one plan to another."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cli.conftest import MIB, machine, model

from enplace.cli.differing import _by_scope, _count_reordered
from enplace.names.by_scope import MOST_ROWS, count_by_scope


@pytest.fixture
def plans(enplace, folder):
    """Write a plan on one GPU, and one whose layer 2 and loss are pinned to the other."""
    place = ("place", "p.json", "--cluster", "c.json", "--method", "single")
    assert enplace(*place, "-o", "a.json").status == 0
    pins = ("--pin", "encoder/layer_2/.*=GPU:1", "--pin", "loss=GPU:1")
    assert enplace(*place, *pins, "-o", "b.json").status == 0
    return "a.json", "b.json"


def test_moves_and_pins_are_listed_by_scope(enplace, plans):
    found = enplace("diff", *plans, "--json").document
    assert (found["ops"], found["moved"], found["reordered"]) == (7, 3, 0)
    where = {"before": "GPU:0", "after": "GPU:1"}
    assert found["moves"] == [
        {"scope": "encoder/layer_2/MatMul", "ops": 1} | where,
        {"scope": "encoder/layer_2/Relu", "ops": 1} | where,
        {"scope": "loss", "ops": 1} | where,
    ]
    assert sum(pin["ops"] for pin in found["pins"]["added"]) == 3
    assert found["pins"]["removed"] == []
    assert found["only_before"] == found["only_after"] == []


def test_step_time_and_memory_are_those_of_the_files_or_of_the_profile(enplace, plans):
    one, other = (json.loads(Path(plan).read_text())["predicted"] for plan in plans)
    found = enplace("diff", *plans, "--json").document
    assert found["before"]["step_time_us"] == one["step_time_us"]
    assert found["after"]["step_time_us"] == other["step_time_us"]
    memory = {row["device"]: row for row in found["memory"]}
    for device, peak in one["peak_bytes"].items():
        assert memory[device]["before_bytes"] == peak
        assert memory[device]["after_bytes"] == other["peak_bytes"][device]
    slower = model()
    for op in slower["ops"]:
        op["time_us"]["gpu"] *= 2
    Path("slower.json").write_text(json.dumps(slower))
    again = enplace("diff", *plans, "--profile", "slower.json", "--json").document
    assert again["before"]["step_time_us"] == 1400.0
    assert again["simulated_on"] == "slower.json"


def test_times_of_an_estimate_are_labelled_in_differences_and_pipelines(enplace, folder):
    Path("p.json").write_text(json.dumps(model() | {"measured": {"estimated": "H100"}}))
    for name, device in (("a.json", "GPU:0"), ("b.json", "GPU:1")):
        pin = ("--pin", f"loss={device}", "-o", name)
        place = ("place", "p.json", "--cluster", "c.json", "--method", "single", *pin)
        assert enplace(*place).status == 0
    assert "estimated step time" in enplace("diff", "a.json", "b.json").out
    assert enplace("diff", "a.json", "b.json", "--json").document["after"]["estimated"] == "H100"
    pipeline = ("simulate", "p.json", "b.json", "--pipeline", "inference")
    for more in ((), ("--microbatches", "2,4")):
        assert "estimated from a roofline of the H100" in enplace(*pipeline, *more).out
    assert enplace(*pipeline, "--json").document["estimated"] == "H100"


def test_orders_that_were_added_are_listed(enplace, folder):
    place = ("place", "p.json", "--cluster", "c.json", "--method", "single")
    chain = [{"src": "encoder/layer_0/MatMul", "output": 0, "dst": "loss", "bytes": MIB}]
    Path("p.json").write_text(json.dumps(model(edges=chain)))
    enplace(*place, "-o", "a.json")
    enplace(*place, "--before", "layer_2/Relu=layer_1/Relu", "-o", "b.json")
    found = enplace("diff", "a.json", "b.json", "--json").document
    pair = ["encoder/layer_2/Relu", "encoder/layer_1/Relu"]
    assert found["orders"] == {"added": [pair], "removed": []}
    for more in ((), ("--markdown",), ("--profile", "p.json")):
        out = enplace("diff", "b.json", "a.json", *more).out
        assert "1 order removed" in out
        assert pair[0] in out.replace("\\_", "_")


def test_exclusions_colocation_and_locks_are_reviewed(enplace, folder):
    place = ("place", "p.json", "--cluster", "c.json", "--method", "m-etf")
    enplace(*place, "-o", "a.json")
    words = ("--forbid", "layer_2/=GPU:0", "--colocate", "layer_1/", "--lock", "GPU:0")
    enplace(*place, *words, "--pin", "layer_0/=GPU:0", "-o", "b.json")
    for more in ((), ("--profile", "p.json")):
        found = enplace("diff", "a.json", "b.json", "--json", *more).document
        added = found["exclusions"]["added"]
        assert {row["device"] for row in added} == {"GPU:0"}
        assert sum(row["ops"] for row in added) == 2
        group = ["encoder/layer_1/MatMul", "encoder/layer_1/Relu"]
        assert found["colocations"] == {"added": [group], "removed": []}
        assert found["locks"] == {"added": ["GPU:0"], "removed": []}
        for form in ((), ("--markdown",)):
            out = enplace("diff", "b.json", "a.json", *more, *form).out.replace("\\_", "_")
            assert "2 exclusions removed" in out
            assert "1 colocation removed" in out
            assert ", ".join(group) in out
            assert "1 lock removed: GPU 0" in out


def test_ops_that_stay_together_may_be_listed_in_any_order(enplace, folder):
    words = ("--method", "m-etf", "--colocate", "layer_1/")
    enplace("place", "p.json", "--cluster", "c.json", *words, "-o", "a.json")
    plan = json.loads(Path("a.json").read_text())
    plan["colocate"] = [row[::-1] for row in plan["colocate"]]
    Path("b.json").write_text(json.dumps(plan))
    found = enplace("diff", "a.json", "b.json", "--json").document
    assert found["colocations"] == {"added": [], "removed": []}


def test_the_text_says_what_a_reviewer_needs(enplace, plans):
    out = enplace("diff", *plans).out
    assert "3 of 7 ops on another device" in out
    assert "GPU 0 → GPU 1" in out
    assert "3 pins added" in out
    assert "step time" in out
    assert enplace("diff", plans[1], plans[0]).out.count("3 pins removed") == 1


def test_equal_plans_have_no_differences(enplace, plans):
    done = enplace("diff", plans[0], plans[0])
    assert done.status == 0
    assert "The plans place and order all ops alike." in done.out


def test_markdown_is_a_table_in_which_names_stand_as_they_are(enplace, folder):
    names = ["a|b", "x*y*", "c_d_e"]
    (folder / "odd.json").write_text(json.dumps(model(names)))
    place = ("place", "odd.json", "--cluster", "c.json", "--method", "single")
    enplace(*place, "-o", "a.json")
    enplace(*place, "--pin", ".*=GPU:1", "-o", "b.json")
    out = enplace("diff", "a.json", "b.json", "--markdown").out
    for name in (r"a\|b", r"x\*y\*", r"c\_d\_e"):
        assert f"| {name} | GPU 0 → GPU 1 | 1 op |" in out


def test_ops_of_only_one_plan_are_named(enplace, plans, folder):
    data = json.loads(Path("b.json").read_text())
    data["ops"] = [{**op, "op": op["op"].replace("loss", "cost")} for op in data["ops"]]
    data["pins"] = {}
    (folder / "other.json").write_text(json.dumps(data))
    found = enplace("diff", "a.json", "other.json", "--json").document
    assert (found["only_before"], found["only_after"]) == (["loss"], ["cost"])
    assert "1 op removed: loss" in enplace("diff", "a.json", "other.json").out


def test_a_plan_that_no_longer_fits_is_marked(enplace, folder, plans):
    (folder / "tight.json").write_text(json.dumps(machine(20 * MIB)))
    place = ("place", "p.json", "--cluster", "tight.json", "--method", "single")
    enplace(*place, "-o", "unfit.json")
    found = enplace("diff", "a.json", "unfit.json", "--json").document
    assert (found["before"]["fits"], found["after"]["fits"]) == (True, False)
    assert "too much" in enplace("diff", "a.json", "unfit.json").out


def test_a_file_that_is_no_plan_is_refused(enplace, plans):
    done = enplace("diff", "a.json", "p.json")
    assert done.status == 2
    assert "p.json" in done.err


def test_an_op_that_runs_earlier_on_its_device_is_counted_once():
    before = dict.fromkeys("abcdef", "GPU:0")
    assert _count_reordered(before, dict.fromkeys("fabcde", "GPU:0")) == 1


def test_scopes_are_as_deep_as_a_short_table_allows():
    wide = {f"layer_{i}/part_{j}/op": "x" for i in range(5) for j in range(9)}
    assert count_by_scope(wide) == [(f"layer_{i}", "x", 9) for i in range(5)]
    narrow = {"a/b/c": 1, "a/b/d": 1, "e": 2}
    assert count_by_scope(narrow) == [("a/b/c", 1, 1), ("a/b/d", 1, 1), ("e", 2, 1)]
    flat = dict.fromkeys(map(str, range(MOST_ROWS + 5)), "x")
    assert len(count_by_scope(flat)) == MOST_ROWS + 5
    assert count_by_scope({}) == []
    assert count_by_scope({"a/b/c": "x"}) == [("a/b/c", "x", 1)]


def test_rows_are_sorted_by_size_and_large_ones_are_split_into_ranges():
    steps = [f"gradients/t{t}/cell_1/op_{k}" for t in range(4, 8) for k in range(25)]
    sums = [f"gradients/AddN_{n}" for n in range(120, 128)]
    found = count_by_scope(dict.fromkeys([*sums, *steps], "GPU:1"), 4)
    assert ("gradients/AddN_120…AddN_127", "GPU:1", 8) in found
    assert next(row for row in found if row[2] == 100)[0].startswith("gradients/t4…t7/cell_1")
    assert sum(row[2] for row in found) == 108
    outermost = {f"t{t}/cell/op_{k}": "GPU:1" for t in range(35) for k in range(4)}
    assert count_by_scope(outermost)[0][0].startswith("t0…t34/cell")


@given(
    st.dictionaries(
        st.from_regex(r"[a-c][0-9]?(/[a-c][0-9]?){0,3}", fullmatch=True),
        st.integers(0, 1),
        max_size=60,
    )
)
def test_every_op_is_counted_once(keys):
    found = count_by_scope(keys, 4)
    for key in (0, 1):
        assert sum(n for _, k, n in found if k == key) == list(keys.values()).count(key)


def test_the_largest_moves_come_first(enplace, folder):
    names = [f"small/op_{n}" for n in range(2)] + [f"large/op_{n}" for n in range(9)]
    Path("p.json").write_text(json.dumps(model(names)))
    place = ("place", "p.json", "--cluster", "c.json", "--method", "single")
    enplace(*place, "-o", "a.json")
    enplace(*place, "--pin", ".*=GPU:1", "-o", "b.json")
    sizes = [
        move["ops"] for move in enplace("diff", "a.json", "b.json", "--json").document["moves"]
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_plans_of_different_models_are_not_compared(enplace, plans):
    Path("q.json").write_text(json.dumps(model(["conv", "pool", "dense"])))
    enplace("place", "q.json", "--cluster", "c.json", "--method", "single", "-o", "other.json")
    done = enplace("diff", "a.json", "other.json")
    assert done.status == 2
    assert "a plan of another model" in done.err
    assert done.err.count("\n") == 1


def test_a_range_of_scopes_names_only_those_that_the_ops_are_in():
    """The blocks conv5_1 to conv5_4 are in conv 5, not in ``conv4…conv5``."""
    keys = {
        f"conv{n}/conv{n}_{block}/op_{k}": "GPU:1"
        for n in (4, 5)
        for block in range(1, 5)
        for k in range(6)
    }
    labels = [row[0] for row in count_by_scope(keys | {"loss": "GPU:0"}, 2)]
    assert labels == ["conv4/conv4_1…conv4_4", "conv5/conv5_1…conv5_4", "loss"]


def test_pins_of_one_scope_are_one_row():
    kinds = ["BiasAdd", "Conv2D", "L2Loss", "Relu", "biases", "mul", "weights", "read", "x"]
    pins = [(f"conv1/conv1_1/{kind}", "GPU:1") for kind in kinds]
    assert _by_scope(pins) == [{"scope": "conv1/conv1_1", "device": "GPU:1", "ops": len(kinds)}]
