"""What a result shows and writes."""

import base64
import copy
import pickle
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from tests.core.cli.conftest import OPS, machine

import enplace as ep
from enplace.api.result import Comparison, Result
from enplace.errors import EnplaceError
from enplace.text import ms

MISSING = "is not installed; run: pip install 'enplace[notebook]'"


@pytest.fixture
def result(folder) -> Result:
    return ep.place("p.json", "c.json", "heft", pins={"loss": "GPU:1"})


def pictures(html: str) -> list[ElementTree.Element]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [ElementTree.fromstring(base64.b64decode(each)) for each in found]


def result_title(result: Result) -> str:
    return f"tiny: step time {ms(result.step_time_us)}"


def test_a_schedule_becomes_a_table_of_ops(result):
    table = result.schedule.to_pandas()
    assert table["op"].tolist() == OPS
    assert dict(zip(table["op"], table["device"], strict=True)) == result.devices
    assert table["finish_us"].max() == result.step_time_us
    assert (table["finish_us"] - table["start_us"]).tolist() == pytest.approx([100.0] * len(OPS))


def test_a_schedule_becomes_a_table_of_transfers(result):
    table = result.schedule.transfers_to_pandas()
    assert len(table) == len(result.schedule.transfer_tensor) > 0
    row = table.iloc[-1]
    assert (row["op"], row["target"]) == ("encoder/layer_2/Relu", "GPU:1")
    assert row["bytes"] == 1 << 20
    assert row["start_us"] < row["finish_us"]


def test_the_plot_has_a_row_for_each_device_and_channel(result):
    from matplotlib import pyplot

    axes = result.plot()
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["GPU 0", "GPU 1", "GPU 0 → GPU 1"]
    assert axes.get_xlim() == (0, result.step_time_us / 1000)
    assert "tiny, heft" in axes.get_title(loc="left")
    assert result.plot(axes) is axes
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("pandas", lambda result: result.schedule.to_pandas()),
        ("pandas", lambda result: Comparison({"heft": result}, {}).to_pandas()),
        ("matplotlib.pyplot", lambda result: result.plot()),
    ],
)
def test_a_missing_package_is_named_with_its_extra(result, monkeypatch, module, use):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ep.EnplaceError) as caught:
        use(result)
    assert str(caught.value) == f"{module.partition('.')[0]} {MISSING}"


def test_a_notebook_shows_figures_and_pictures(result):
    html = result._repr_html_()
    assert "tiny on pair, heft" in html
    titles = [picture.findtext("{*}title") for picture in pictures(html)]
    assert titles == ["tiny: graph", result_title(result), "memory over time"]


def test_names_from_a_file_cannot_write_into_the_notebook(folder):
    text = (folder / "p.json").read_text().replace('"tiny"', '"<script>alert(1)</script>"')
    (folder / "p.json").write_text(text)
    result = ep.place("p.json", "c.json", "heft")
    found = ep.compare("p.json", "c.json", ["heft"])
    problem = result.schedule.problem
    cluster = replace(problem.cluster, name="<script>", description="<script>")
    for shown in (result, found, problem.profile, cluster, result.schedule):
        html = shown._repr_html_()
        assert "<script" not in html
        assert pictures(html)


def test_a_notebook_shows_a_profile_by_where_its_time_goes(folder):
    html = ep.read("p.json")._repr_html_()
    assert "tiny: 7 ops, 6 edges, 28 MiB of variables" in html
    (picture,) = pictures(html)
    texts = ["".join(text.itertext()) for text in picture.iterfind("{*}text")]
    assert texts[0] == "tiny: time of its parts"
    shares = [float(found[1]) for text in texts if (found := re.search(r"([\d.]+) %", text))]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert shares == sorted(shares, reverse=True)


def test_a_notebook_says_that_times_are_estimated(folder):
    profile = ep.read("p.json")
    measured = replace(profile.measured, estimated="a roofline")
    (picture,) = pictures(replace(profile, measured=measured)._repr_html_())
    assert "tiny: estimated time of its parts" in "".join(picture.itertext())


def test_a_notebook_shows_a_cluster_by_the_speed_of_its_links():
    cluster = ep.clusters()["celeritas"]
    html = cluster._repr_html_()
    assert html.count("<td>GPU ") == 4
    assert "<td>32.0 GiB</td>" in html
    (picture,) = pictures(html)
    texts = ["".join(text.itertext()) for text in picture.iterfind("{*}g/{*}text")]
    assert texts.count("10 GB/s *") == 4 * 3
    assert texts.count("12.8 GB/s") == 4 * 2
    assert "takes turns with other links" in "".join(picture.itertext())


def test_the_picture_of_a_large_cluster_stays_small():
    (picture,) = pictures(ep.clusters()["fastt-2x8"]._repr_html_())
    assert len(picture.findall("{*}g")) == 16 * 15
    assert "1 more device not drawn" in "".join(picture.itertext())


def test_a_notebook_shows_a_schedule_over_time(result):
    html = result.schedule._repr_html_()
    assert "Schedule of tiny on pair, heft" in html
    titles = [picture.findtext("{*}title") for picture in pictures(html)]
    assert titles == [result_title(result), "memory over time"]


def test_short_lines_describe_values(result):
    assert repr(result) == f"<Result of heft: tiny on pair, {result_title(result)[6:]}>"
    assert repr(result.schedule.problem) == "<Problem of tiny on pair>"
    assert repr(result.plan) == "<Plan of heft: 7 ops>"
    assert repr(result.schedule).startswith("<Schedule of tiny on pair, heft: ")
    assert repr(result.schedule.problem.cluster) == "<Cluster pair: GPU:0, GPU:1>"
    profile = result.schedule.problem.profile
    assert repr(profile) == "<Profile tiny: 7 ops, 6 edges, 28 MiB of variables>"


def test_a_pipeline_is_described_by_its_own_value():
    sample = ep.samples()["bert-3-training"]
    result = ep.place(sample, sample.cluster, "expert", objective="throughput")
    assert repr(result).endswith(f", time per sample {ms(result.value_us)}>")
    assert result.verdict == ""


def test_printing_says_whether_the_plan_is_worth_it(result):
    assert str(result).startswith("tiny on pair, heft, solved in ")
    assert "Data parallelism is faster: it takes 0.36 ms" in str(result)
    assert "One device takes 0.70 ms." in str(result)


def test_memory_is_told_by_device(result):
    assert list(result.peak_bytes) == ["GPU:0", "GPU:1"]
    assert result.peak_bytes["GPU:0"] >= 24 << 20


@pytest.mark.parametrize("name", ["html", "svg", "csv", "trace", "python"])
def test_formats_are_those_of_the_command(enplace, folder, result, name):
    result.save("plan.json")
    result.export(name, folder / "ours")
    done = enplace("export", "p.json", "plan.json", "--format", name, "-o", "theirs")
    assert done.status == 0
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


def test_an_unknown_format_or_folder_is_refused_in_one_line(result):
    with pytest.raises(ep.EnplaceError, match="there is no format 'htm'; did you mean 'html'"):
        result.export("htm", "report.html")
    with pytest.raises(ep.EnplaceError, match=r"^none/plan\.json: "):
        result.save("none/plan.json")


def test_a_comparison_is_a_table(folder):
    found = ep.compare("p.json", "c.json", ["heft", "single"])
    table = found.to_pandas()
    assert table.index.tolist() == ["heft", "single"]
    assert table["step_time_us"].tolist() == [r.step_time_us for r in found.results.values()]
    verdict, shown, *_ = repr(found).split("\n\n")
    assert verdict.startswith("Data parallelism is faster: it takes 0.36 ms")
    assert [row.split()[0] for row in shown.splitlines()] == ["method", "heft", "single", "data"]
    assert [each.number for each in found.data_parallel] == [2]
    assert [each.value_us for each in found.alternatives] == [found.data_parallel[0].step_time_us]
    assert len(pictures(found._repr_html_())) == 1


def test_a_plan_that_fits_is_better_than_a_fast_one_that_does_not(folder):
    fast = ep.place("p.json", "c.json", "single")
    slow = ep.place("p.json", "c.json", "round-robin")
    assert fast.step_time_us < slow.step_time_us
    enough = machine(max(slow.peak_bytes.values()))
    results = {each.method: ep.simulate("p.json", each, enough) for each in (fast, slow)}
    assert repr(results["single"]).endswith("; This plan does not fit>")
    assert Comparison(results, {}).best is results["round-robin"]


def test_without_any_plan_a_comparison_says_why():
    found = Comparison({}, {"heft": "it does not fit"})
    assert repr(found) == "heft has no plan: it does not fit"
    assert "it does not fit" in found._repr_html_()
    with pytest.raises(ep.EnplaceError, match="no method has a plan"):
        found.best  # noqa: B018


def test_a_copy_of_a_result_is_as_frozen_as_the_result(result):
    copies = (copy.copy(result), copy.deepcopy(result))
    for each in (*copies, pickle.loads(pickle.dumps(result))):
        assert each.value_us == result.value_us
        time_us = each.schedule.problem.profile.time_us
        for array in (each.plan.device, each.schedule.op_start_us, time_us):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        with pytest.raises(ValueError, match="cannot set"):
            time_us.setflags(write=True)


def test_catalogues_can_be_pickled():
    for catalogue in (ep.methods(), ep.clusters(), ep.samples()):
        again = pickle.loads(pickle.dumps(catalogue))
        assert repr(again) == repr(catalogue)
        assert list(again) == list(catalogue)


def test_only_a_result_of_the_library_becomes_a_result():
    with pytest.raises(EnplaceError, match="result is 5"):
        Result.of(5)  # type: ignore[arg-type]


def test_only_a_next_move_can_be_made(result):
    with pytest.raises(EnplaceError, match=r"^move is \{\}; use one of next_moves$"):
        result.after({})  # type: ignore[arg-type]


def test_a_result_that_was_printed_becomes_a_result_again(result):
    print(result)
    assert Result.of(result).plan is result.plan


@pytest.mark.parametrize(
    "write",
    [
        lambda result, path, **how: ep.write(path, ep.read("p.json"), **how),
        lambda result, path, **how: result.save(path, **how),
        lambda result, path, **how: result.export("html", path, **how),
    ],
)
def test_a_file_of_another_kind_is_replaced_only_by_force_and_kept(folder, result, write):
    script = folder / "train.py"
    script.write_text("import keras")
    with pytest.raises(ep.EnplaceError, match="name another file, or pass force=True"):
        write(result, script)
    assert script.read_text() == "import keras"
    write(result, script, force=True)
    assert script.read_bytes() != b"import keras"
    assert (folder / "train.py~").read_text() == "import keras"
    write(result, script)
