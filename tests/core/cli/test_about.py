"""``methods``, ``clusters``, ``doctor``, ``studio``, ``completion``."""

import importlib.util
import json
import shutil
import signal
import subprocess

import pytest

from enplace.cli import run
from enplace.placers import DEFAULT_METHODS, placers
from enplace.readers.clusters import presets


def test_methods_as_json_have_exactly_the_promised_keys(enplace):
    found = enplace("methods", "--json").document
    assert [entry["name"] for entry in found["methods"]] == list(placers())
    keys = {"name", "good", "source", "objectives", "capabilities", "installed", "why_not"}
    assert all(set(entry) == {*keys, "options"} for entry in found["methods"])
    options = [option for entry in found["methods"] for option in entry["options"]]
    assert all(set(option) == {"name", "values", "default", "help"} for option in options)


def test_one_method_is_shown_with_what_it_can_do_and_its_flags(enplace):
    (found,) = enplace("methods", "m-etf", "--json").document["methods"]
    assert found["name"] == "m-etf"
    shown = enplace("methods", "m-etf").out
    assert shown.startswith("m-etf: ")
    assert "--memory-rule" in shown
    assert "there is no method 'm-etg'" in enplace("methods", "m-etg").err


def test_methods_mark_the_default_of_each_objective(enplace):
    lines = enplace("methods").out.splitlines()
    marked = [line.split()[0] for line in lines if " default " in line]
    assert sorted(marked) == sorted(DEFAULT_METHODS.values())


def test_clusters_lists_every_preset(enplace):
    found = enplace("clusters", "--json").document["clusters"]
    assert {entry["name"]: len(entry["devices"]) for entry in found} == {
        name: cluster.n_devices for name, cluster in presets().items()
    }


@pytest.mark.parametrize("name", list(presets()))
def test_a_preset_printed_as_json_works_as_a_custom_cluster(enplace, folder, name):
    (folder / "mine.json").write_text(enplace("clusters", "--json", name).out)
    steps = [
        enplace("place", "p.json", "--cluster", cluster, "--method", "round-robin", "--json")
        for cluster in (name, "mine.json")
    ]
    assert steps[0].document["step_time_us"] == steps[1].document["step_time_us"]


def test_an_unknown_preset_is_refused(enplace):
    done = enplace("clusters", "nonesuch")
    assert done.status == 2
    assert "no preset 'nonesuch'" in done.err


def test_doctor_lists_versions_extras_and_the_cache(enplace):
    done = enplace("doctor", "--json")
    found = done.document
    assert found["versions"].keys() >= {"enplace", "python", "numba"}
    assert {extra["name"] for extra in found["extras"]} == {
        "studio",
        "onnx",
        "tensorflow",
        "torch",
        "gpu",
        "metis",
        "notebook",
        "exact",
    }
    assert found["extras"][1]["install"] == "pip install 'enplace[tensorflow]'"
    assert done.status == (0 if found["cache"]["writable"] else 1)


def test_doctor_shows_the_version_of_tensorflow_or_how_to_install_it(enplace, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("enplace.cli.about._version", lambda name: "9.8.7")
    assert "tensorflow 9.8.7" in enplace("doctor").out
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "missing: pip install 'enplace[tensorflow]'" in enplace("doctor").out


def test_doctor_shows_where_scotch_is_or_how_to_install_it(enplace, monkeypatch):
    (method,) = (
        m for m in enplace("methods", "--json").document["methods"] if m["name"] == "scotch"
    )
    found = enplace("doctor", "--json").document["programs"]["scotch"]
    assert (found is not None) == method["installed"]
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert "/usr/bin/scotch_gmap" in enplace("doctor").out
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "missing: apt install scotch" in enplace("doctor").out


def test_doctor_fails_if_compiled_code_cannot_be_cached(enplace, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    done = enplace("doctor")
    assert done.status == 1
    assert "set NUMBA_CACHE_DIR" in done.out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUMBA_CPU_NAME", "nonsense"),
        ("NUMBA_CPU_FEATURES", "+nonsense"),
        ("NUMBA_CPU_FEATURES", "no sign before it ends the compiler"),
        ("NUMBA_NUM_THREADS", "-3"),
        ("NUMBA_CACHE_LOCATOR_CLASSES", "Nonsense"),
    ],
)
def test_a_setting_that_the_compiler_does_not_know_is_refused(enplace, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    done = enplace("methods")
    assert done.status == 2
    assert done.err.startswith(f"enplace: {name}={value}: ")
    assert done.err.endswith("; unset it\n")


def test_without_the_studio_one_line_explains_how_to_install_it(enplace, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = enplace("studio")
    assert done.status == 2
    assert done.err == "enplace: the studio is not installed; run: pip install 'enplace[studio]'\n"


def test_the_studio_command_opens_the_file(enplace, folder, monkeypatch):
    calls = []

    class Window:
        def __init__(self, words, env):
            calls.append(words[1:])

        def wait(self):
            return 0

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "Popen", Window)
    assert enplace("studio", "p.json").status == 0
    assert calls == [("-P", "-m", "enplace_studio", "p.json")]
    assert enplace("studio", "nonesuch").status == 2


def test_the_window_ends_with_the_studio_command(enplace, monkeypatch):
    ended = []

    class Window:
        def __init__(self, words, env):
            pass

        def wait(self):
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
            return 0

        def terminate(self):
            ended.append(self)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "Popen", Window)
    before = signal.getsignal(signal.SIGTERM)
    assert enplace("studio").status == 0
    assert len(ended) == 1
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_the_command(enplace, shell):
    done = enplace("completion", shell)
    assert f"_ENPLACE_COMPLETE={shell}_complete" in done.out


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_the_bash_script_is_valid(enplace):
    script = enplace("completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("enplace pl", {"place", "plan-serving"}),
        ("enplace place x --cluster pes", {"pesto"}),
        ("enplace place x --cluster from", {"from-file"}),
        ("enplace clusters celer", {"celeritas"}),
        ("enplace place x --method cel", {"celeritas"}),
        ("enplace compare x --methods heft,sing", {"heft,single"}),
        ("enplace export x y --format p", {"python"}),
    ],
)
def test_completion_offers_commands_presets_and_methods(monkeypatch, capsys, line, expected):
    monkeypatch.setenv("_ENPLACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()} == expected


def test_a_cluster_of_ones_own_is_written(enplace, tmp_path):
    file = tmp_path / "mine.json"
    words = ("--gpus", "2", "--model", "A100", "--memory", "40GiB", "--link", "nvlink")
    made = enplace("clusters", *words, "-o", str(file), "--json").document
    assert [device["name"] for device in made["devices"]] == ["GPU:0", "GPU:1", "CPU:0"]
    assert made["devices"][0]["capacity_bytes"] == 40 << 30
    assert json.loads(file.read_text()) == made


def test_the_answer_says_where_the_cluster_is(enplace, tmp_path):
    file = str(tmp_path / "copy.json")
    assert f"The cluster is in {file}." in enplace("clusters", "pesto", "-o", file).out


@pytest.mark.parametrize("words", [("--detect",), ("--gpus", "2"), ("--memory", "24GiB")])
def test_a_preset_is_not_described_as_well(enplace, words):
    done = enplace("clusters", "pesto", *words)
    assert done.status == 2
    assert "leave out the preset 'pesto'" in done.err


def test_detection_without_a_gpu_and_without_a_terminal_says_what_to_add(enplace, monkeypatch):
    monkeypatch.setattr("enplace.frameworks.nvml.visible_cards", list)
    done = enplace("clusters", "--detect")
    assert done.status == 2
    assert "--gpus 4 --model A100 --memory 80GiB --link nvlink" in done.err


def test_detection_without_a_gpu_asks_on_a_terminal(enplace, monkeypatch):
    monkeypatch.setattr("enplace.frameworks.nvml.visible_cards", list)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["0", "3", "V100", "much", "16GiB", "nvlink"])
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(answers))
    done = enplace("clusters", "--detect", "--json")
    assert "'much' is not a size such as 24GiB" in done.err
    made = done.document
    assert [device["speed"] for device in made["devices"][:3]] == [0.3] * 3
