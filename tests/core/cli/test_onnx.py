"""ONNX models on the command line: imported by a worker, their times labelled as estimated."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import enplace as ep
import onnx_models
from enplace.frameworks.onnx import framework
from enplace.frameworks.onnx.framework import FRAMEWORK, explain_end
from enplace.frameworks.registry import framework_in_use, usual_framework
from enplace.processes.child import start_child
from enplace.processes.worker import handler_program
from enplace.readers import read_profile
from enplace.values.measurement import Measurement
from forking import fork_workers
from onnx_models import save


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Workers need not import the library of ONNX anew."""
    fork_workers(monkeypatch)


@pytest.fixture
def bert(folder):
    return save(onnx_models.bert(layers=2, hidden=64, heads=2, vocabulary=500), folder / "b.onnx")


@pytest.fixture
def imported(bert, enplace):
    enplace("import", bert, "-o", "b.enplace")
    return "b.enplace"


def test_a_model_is_imported_with_the_sizes_and_the_gpu_that_are_asked_for(bert, enplace):
    done = enplace(
        "import", bert, "-o", "b.enplace", "--device", "a100", "--batch-size", 2,
        "--size", "sequence_length=16",
    )  # fmt: skip
    assert done.status == 0
    assert "estimated from a roofline of the A100" in done.out
    assert "This is the graph of an inference" in done.out
    assert "No GPU was named" not in done.out
    assert "batch_size = 2, sequence_length = 16" in done.out
    measured = read_profile("b.enplace").measured
    assert (measured.estimated, measured.batch_size) == ("A100", 2)
    assert measured.source["path"] == str(bert.resolve())


def test_without_options_the_batch_is_one_and_the_gpu_the_one_of_the_bundled_profiles(
    bert, enplace
):
    done = enplace("import", bert, "-o", "b.json", "--json")
    assert done.document["estimated"] == "H200"
    why = "No GPU was named, so the H200 was taken; --device chooses another."
    assert done.document["notes"][-1] == why
    assert json.loads(Path("b.json").read_text())["measured"]["estimated"] == "H200"
    assert read_profile("b.json").measured.batch_shapes == ((1, 128),)


def test_the_ops_of_a_module_stay_together_on_request(imported, enplace):
    words = ("--cluster", "h200-2-nvlink", "--method", "round-robin", "--grain", "module")
    assert enplace("place", imported, *words, "-o", "module.json").status == 0
    profile = read_profile(imported)
    scopes = dict(zip(profile.op_names, profile.scopes, strict=True))
    found = {}
    for op in json.loads(Path("module.json").read_text())["ops"]:
        found.setdefault(scopes[op["op"]], set()).add(op["device"])
    modules = {scope: devices for scope, devices in found.items() if scope not in ("", "input")}
    assert len(modules) > 10
    assert all(len(devices) == 1 for devices in modules.values())
    assert len(set.union(*modules.values())) == 2


def test_sizes_that_only_a_run_tells_are_counted(folder, enplace):
    ops = [onnx_models.node("NonZero", "x", "i"), onnx_models.node("Neg", "i", "y")]
    made = onnx_models.model(ops, [("x", [8, 8])], [("y", [2, "n"], onnx_models.TensorProto.INT64)])
    said = enplace("import", save(made, folder / "open.onnx"), "-o", "open.enplace").out
    assert "The size of 2 tensors is only known in a run" in said


def test_ops_of_unknown_types_are_named_with_what_was_assumed(folder, enplace):
    ops = [
        onnx_models.node("_DCNv2", "x", "a"),
        onnx_models.helper.make_node("Plug", ["a"], ["b"], domain="my.plugins"),
        onnx_models.node("Relu", "b", "y"),
    ]
    made = onnx_models.model(ops, [("x", [8, 8])], [("y", [8, 8])])
    words = ("import", save(made, folder / "m.onnx"), "-o", "m.enplace")
    note = "2 ops of unknown types (_DCNv2, Plug): only their bytes count"
    assert note in enplace(*words).out
    assert enplace(*words, "--json").document["notes"][0].startswith(note)
    assert read_profile("m.enplace").measured.notes[0].startswith(note)


def test_a_branch_of_a_merged_decoder_is_chosen_by_its_name(folder, enplace):
    path = save(onnx_models.merged_decoder(), folder / "m.onnx")
    said = enplace("import", path, "-o", "m.enplace").out
    assert "this is 'then' (with_past), because it reads the past" in said
    enplace("import", path, "-o", "m.enplace", "--branch", "first_call")
    assert "first" in read_profile("m.enplace").op_names
    assert ep.read_onnx(path, branch="else").op_names == read_profile("m.enplace").op_names


def test_gpus_that_count_as_faster_than_the_one_estimated_for_are_pointed_out(bert, enplace):
    enplace("import", bert, "-o", "v.enplace", "--device", "v100")
    place = ("place", "v.enplace", "--method", "heft", "--cluster")
    said = enplace(*place, "h200-2-nvlink").out
    assert "have speed 1 and count as 3.3 times as fast as the V100, which has 0.3" in said
    assert "count as" not in enplace(*place, "v100-2-pcie").out


def test_a_time_that_nobody_measured_says_so_wherever_it_shows(imported, enplace):
    cluster = ("--cluster", "h200-2-nvlink")
    placed = enplace("place", imported, *cluster, "--method", "heft", "-o", "plan.json")
    assert "estimated step time" in placed.out
    assert "Op times are estimated from a roofline of the H200, not measured." in placed.out
    assert json.loads(Path("plan.json").read_text())["predicted"]["estimated"] == "H200"
    enplace("place", imported, *cluster, "--method", "heft", "--schedule", "s.json")
    assert json.loads(Path("s.json").read_text())["estimated"] == "H200"
    assert "estimated step time" in enplace("simulate", imported, "plan.json").out
    assert enplace("simulate", imported, "plan.json", "--json").document["estimated"] == "H200"
    compared = enplace("compare", imported, *cluster, "--methods", "single,heft")
    assert "estimated step time" in compared.out
    pipeline = enplace("simulate", imported, "plan.json", "--pipeline", "inference")
    assert "estimated time per sample" in pipeline.out
    enplace("export", imported, "plan.json", "--format", "html", "-o", "r.html")
    report = Path("r.html").read_text()
    assert "estimated step time" in report
    assert "Op times are estimated" in report
    assert "enplace.apply" not in report
    for form in ("csv", "html", "svg", "trace"):
        out = f"out.{form}"
        assert enplace("export", imported, "plan.json", "--format", form, "-o", out).status == 0
        assert "estimated" in Path(out).read_text(), form


def test_no_module_for_another_framework_is_written(imported, enplace):
    enplace("place", imported, "--cluster", "h200-2-nvlink", "--method", "heft", "-o", "plan.json")
    done = enplace("export", imported, "plan.json", "--format", "python", "-o", "out.py")
    assert done.status == 2
    assert "format 'python' is for TensorFlow, and this is a model of ONNX" in done.err
    assert not Path("out.py").exists()


def test_a_plan_is_written_as_onnx_files_and_read_back(folder, enplace):
    path = save(onnx_models.merged_decoder(), folder / "m.onnx")
    before = path.read_bytes()
    enplace("import", path, "-o", "m.json")
    cluster = ("--cluster", "h200-2-nvlink")
    enplace("place", "m.json", *cluster, "--method", "round-robin", "-o", "plan.json")
    export = ("export", "m.json", "plan.json", "--format")
    said = enplace(*export, "onnx", "-o", "out.onnx")
    assert said.status == 0
    assert "this is 'then'" in said.out
    assert enplace(*export, "onnx-stages", "-o", "stages", "--json").document["bytes"] > 1000
    assert (folder / "stages/stages.json").exists()
    again = enplace(*export, "onnx-stages", "-o", "stages")
    assert (again.status, "is there already" in again.err) == (2, True)
    own = enplace(*export, "onnx", "-o", path, "--force")
    assert (own.status, "stays as it is" in own.err) == (2, True)
    assert path.read_bytes() == before
    assert not list(folder.glob(".*"))
    words = ("import", "out.onnx", "-o", "o.json", "--plan", "read.json", *cluster)
    assert 'The file holds a plan, "enplace"' in enplace(*words).out
    devices = [
        {each["op"]: each["device"] for each in json.loads(Path(name).read_text())["ops"]}
        for name in ("plan.json", "read.json")
    ]
    inputs = {"x", "past.0.key"}
    assert all(devices[0][op] == device for op, device in devices[1].items() if op not in inputs)
    named = enplace("simulate", "o.json", "out.onnx")
    assert (named.status, "is a model; if it holds a plan" in named.err) == (2, True)
    path.unlink()
    gone = enplace(*export, "onnx", "-o", "out.onnx")
    assert (gone.status, f"the model's file {path.resolve()} is needed" in gone.err) == (2, True)


def test_a_measured_profile_says_nothing_of_estimates(folder, enplace):
    done = enplace("place", "p.json", "--cluster", "c.json", "--method", "heft")
    assert "estimated" not in done.out
    assert Measurement().title_of("step time") == "step time"


def test_a_model_in_place_of_a_profile_is_told_how_to_become_one(bert, enplace):
    done = enplace("place", bert, "--cluster", "h200-2-nvlink")
    assert done.status == 2
    assert f"is a model; make its profile first: enplace import {bert} -o P.enplace" in done.err


def test_a_plan_for_it_cannot_run_here(bert, imported, enplace):
    enplace("place", imported, "--cluster", "h200-2-nvlink", "--method", "heft", "-o", "plan.json")
    done = enplace("run", bert, "plan.json", "--profile", imported, "--devices", "cpu:2")
    assert done.status == 2
    assert "which Enplace does not run" in done.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--device", "h300"), "'h300' is not one of 'h200', 'h100', 'a100', 'v100'"),
        (("--size", "sequence_length"), "use names and numbers such as seq_len=128"),
        (("--size", "width=3"), 'no input has a size called "width"; use one of batch_size'),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_the_mend(bert, enplace, options, why):
    done = enplace("import", bert, "-o", "b.enplace", *options)
    assert done.status == 2
    assert why in done.err


def test_its_options_are_for_models_only(folder, enplace):
    done = enplace("import", "p.json", "-o", "q.json", "--device", "h100")
    assert done.status == 2
    assert "has sizes and costs already" in done.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty; export it again"),
        (b"PK\x03\x04", "damaged or not an ONNX model; export or copy it again"),
        (b"\x08\x07", "holds no graph; export the model again"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(folder, enplace, content, why):
    path = save(content, folder / "m.onnx")
    done = enplace("import", path, "-o", "m.enplace")
    assert done.status == 2
    assert done.err.strip() == f"enplace: {path.resolve()}: {why}"


def test_a_file_that_takes_far_more_memory_than_its_size_is_refused(folder, enplace, monkeypatch):
    """Twenty million empty nodes in 40 MB would take gigabytes."""
    monkeypatch.setattr("enplace.processes.worker.start_child", start_child)  # forks tell crashes
    nodes = b"\x0a\x00" * 20_000_000
    length = bytes([len(nodes) >> 7 * i & 127 | 128 * (i < 3) for i in range(4)])
    path = save(b"\x08\x07\x3a" + length + nodes, folder / "m.onnx")
    done = enplace("import", path, "-o", "m.enplace")
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith(f"enplace: {path.resolve()}: ")


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda model: model.graph.node[1], "node 2: its name"),
        (lambda model: model.graph.initializer[0], "weight 1: its name"),
        (lambda model: model.opset_import[0], "the model: its domain"),
    ],
)
def test_a_text_that_is_not_utf8_is_named(folder, enplace, spoil, place):
    made = onnx_models.bert(layers=1, hidden=64, heads=2, vocabulary=500)
    part = spoil(made)
    field = "name" if hasattr(part, "name") else "domain"
    setattr(part, field, "SPOILT")
    path = save(made.SerializeToString().replace(b"SPOILT", b"\xffPOILT"), folder / "m.onnx")
    done = enplace("import", path, "-o", "m.enplace")
    assert done.status == 2
    expected = f"enplace: {path.resolve()}: {place} is not UTF-8; export it again"
    assert done.err.strip() == expected


def test_a_lower_limit_of_the_shell_is_kept(bert):
    code = (
        "import resource, sys; from enplace.frameworks.onnx.limits import limit_reader\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (30, 40)); limit_reader(sys.argv[1])\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU))"
    )
    done = subprocess.run([sys.executable, "-c", code, bert], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("(30, 30)", 0)


def test_a_fault_of_the_worker_is_one_of_enplace_and_not_of_the_file(bert, enplace, monkeypatch):
    faulty = replace(FRAMEWORK, worker=handler_program("builtins:len", "ONNX"))
    monkeypatch.setattr(framework, "FRAMEWORK", faulty)
    done = enplace("import", bert, "-o", "b.enplace")
    assert done.status == 70
    assert "a fault in Enplace, TypeError: object of type 'Connection'" in done.err
    assert "Traceback" in done.err


def test_a_library_that_crashes_or_hangs_on_a_file_ends_its_worker_only():
    assert "crashed on it" in explain_end(-11, "")
    assert "takes minutes" in explain_end(-24, "")
    assert explain_end(1, "") == ""


def test_it_is_no_framework_for_scripts_and_servers(enplace, folder):
    assert not FRAMEWORK.runs
    assert "ONNX" not in (usual_framework().name, framework_in_use().name)
    done = enplace("serve", "c.json", "task", "--framework", "onnx")
    assert done.status == 2
    assert "ONNX runs no models" in done.err
