"""Bad input ends with exit status 2 and one line that names the file, never with a traceback."""

import csv
import gzip
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from tests.core.cli.conftest import OPS, machine, model

from enplace.cli import run
from enplace.errors import CancelledError, EnplaceError
from enplace.names.rules import read_rules
from enplace.readers import read_plan, read_plan_cluster, read_profile
from enplace.readers.clusters import cluster_from
from enplace.values.problem import Problem


def without(key: str) -> dict:
    data = model()
    del data["ops"][1][key]
    return data


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enplace.json", content)
    return buffer.getvalue()


def with_first_op(**changes) -> bytes:
    data = model()
    data["ops"][0] |= changes
    return json.dumps(data).encode()


GOOD = json.dumps(model()).encode()
HOSTILE = {
    "empty": b"",
    "garbage": bytes(range(256)) * 20,
    "text": b"once upon a time",
    "utf16": GOOD.decode().encode("utf-16"),
    "cut-gzip": gzip.compress(GOOD)[:-20],
    "damaged-gzip": gzip.compress(GOOD)[:40] + b"\0" * 40,
    "cut-zip": zipped(b'{"format": "enplace/1"}')[:-30],
    "zip-of-nothing": zipped(b""),
    "newer": zipped(b'{"format": "enplace/99"}'),
    "bomb": zipped(b" " * (200 << 20)),
    "cut-json": GOOD[:-50],
    "deep": b"[" * 200_000,
    "long-number": b'{"ops": [' + b"9" * 10_000 + b"]}",
    "list": b"[1, 2, 3]",
    "null": b"null",
    "empty-object": b"{}",
    "no-ops": json.dumps(model() | {"ops": [], "edges": []}).encode(),
    "ops-text": json.dumps(model() | {"ops": "all"}).encode(),
    "ops-null": json.dumps(model() | {"ops": [None]}).encode(),
    "edges-numbers": json.dumps(model() | {"edges": [1]}).encode(),
    "no-time": json.dumps(without("time_us")).encode(),
    "no-name": json.dumps(without("name")).encode(),
    "nan": with_first_op(time_us={"gpu": float("nan")}),
    "infinity": with_first_op(time_us={"gpu": float("inf")}),
    "negative": with_first_op(persistent_bytes=-1),
    "huge": with_first_op(persistent_bytes=1 << 70),
    "half-byte": with_first_op(persistent_bytes=0.5),
    "bool": with_first_op(time_us={"gpu": True}),
    "name-number": with_first_op(name=7),
    "newline": with_first_op(name="a\nb"),
    "escape": with_first_op(name="a\x1b[31mb"),
    "surrogate": with_first_op(name="a\ud800b"),
    "long-name": with_first_op(name="x" * 100_000),
    "double": with_first_op(name=OPS[1]),
    "tpu": with_first_op(time_us={"tpu": 1}),
    "cycle": json.dumps(
        model() | {"edges": [{"src": a, "dst": b, "bytes": 1} for a, b in (OPS[:2], OPS[1::-1])]}
    ).encode(),
}
COMMANDS = {
    "place": ("place", "{}", "--cluster", "c.json"),
    "compare": ("compare", "{}", "--cluster", "c.json", "--methods", "single"),
    "import": ("import", "{}", "-o", "out.enplace"),
    "simulate": ("simulate", "{}", "plan.json"),
    "plan": ("simulate", "p.json", "{}", "--cluster", "c.json"),
    "own-cluster": ("simulate", "p.json", "{}"),
    "export": ("export", "p.json", "{}", "--format", "csv", "-o", "out.csv"),
    "cluster": ("place", "p.json", "--cluster", "./{}"),
}


def assert_refused(done, name):
    assert done.status == 2, done
    assert done.err.startswith("enplace: ")
    assert name in done.err
    assert done.err.count("\n") == 1
    assert done.err.isprintable() or done.err[:-1].isprintable()
    assert len(done.err) < 1000
    assert done.out == ""


def problem_of(profile, cluster):
    return Problem(read_profile(profile), cluster_from(cluster, None))


READERS = {
    "profile": read_profile,
    "plan": lambda path: read_plan(path, problem_of("p.json", "c.json")),
    "cluster of a plan": read_plan_cluster,
    "cluster": lambda path: cluster_from(path, None),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(folder, kind, reader):
    (folder / "bad.json").write_bytes(HOSTILE[kind])
    with pytest.raises(EnplaceError) as refusal:
        READERS[reader]("bad.json")
    why = str(refusal.value)
    assert "bad.json" in why
    assert why.isprintable()
    assert len(why) < 1000


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan of the model in ``p.json`` on the cluster in ``c.json``."""
    profile, cluster, plan = (tmp_path_factory.mktemp("planned") / name for name in "pcq")
    profile.write_text(json.dumps(model()))
    cluster.write_text(json.dumps(machine()))
    words = ["place", profile, "--cluster", cluster, "--method", "single", "-o", plan]
    assert run(list(map(str, words))) == 0
    return plan.read_bytes()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["garbage", "bomb", "escape", "cycle"])
def test_every_command_refuses_a_hostile_file(enplace, folder, planned, kind, command):
    (folder / "bad.json").write_bytes(HOSTILE[kind])
    (folder / "plan.json").write_bytes(planned)
    arguments = [word.format("bad.json") for word in COMMANDS[command]]
    assert_refused(enplace(*arguments), "bad.json")
    assert not {"out.enplace", "out.csv"} & {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("path", ["nowhere.json", "."])
def test_a_missing_file_and_a_folder_are_refused(enplace, folder, path, command):
    (folder / "plan.json").write_text("{}")
    arguments = [word.format(path) for word in COMMANDS[command]]
    assert_refused(enplace(*arguments), path)


@pytest.mark.parametrize("command", COMMANDS)
def test_with_json_the_error_is_a_json_document(enplace, folder, command):
    (folder / "bad.json").write_bytes(b"{")
    (folder / "plan.json").write_text("{}")
    done = enplace(*[word.format("bad.json") for word in COMMANDS[command]], "--json")
    assert done.status == 2
    assert done.document.keys() == {"error", "kind"}
    assert done.err == f"enplace: {done.document['error']}\n"


def test_a_byte_order_mark_is_ignored(enplace, folder):
    (folder / "bom.json").write_bytes(b"\xef\xbb\xbf" + GOOD)
    assert enplace("place", "bom.json", "--cluster", "c.json").status == 0


@pytest.mark.parametrize("name", ["GPU\n0", "\ud800", "", "x" * 100_001])
def test_a_hostile_device_name_is_refused(enplace, folder, name):
    strange = machine()
    strange["devices"][0]["name"] = name
    (folder / "bad.json").write_text(json.dumps(strange))
    assert_refused(enplace("place", "p.json", "--cluster", "bad.json"), "bad.json")


ODD_NAMES = [
    "<script>alert(1)</script>",
    'quo"te',
    "it's",
    "a,b;c",
    "100%s {x} \\n",
    "é漢字🙂",
    "=1+1",
]


@pytest.mark.parametrize("form", ["python", "csv", "trace", "html", "svg"])
def test_every_export_keeps_names_with_markup_and_quotes(enplace, folder, form):
    (folder / "odd.json").write_text(json.dumps(model(ODD_NAMES, name='<b>"odd"</b>')))
    assert enplace("place", "odd.json", "--cluster", "c.json", "-o", "plan.json").status == 0
    assert enplace("export", "odd.json", "plan.json", "--format", form, "-o", "out").status == 0
    if form in ("html", "svg"):
        text = (folder / "out").read_text(encoding="utf-8")
        assert "<script" not in text
        assert '<b>"odd"' not in text


def test_an_output_that_the_system_refuses_is_refused_before_the_work(enplace, folder):
    (folder / "cycle").symlink_to("cycle")
    (folder / "far").symlink_to("n" * 300)
    for name, why in (
        ("n" * 300, "choose a shorter name"),
        ("cycle", "not part of a cycle of links"),
        ("far/plan.json", "there is no folder 'far'; create it first"),
    ):
        done = enplace("place", "no-profile.json", "--cluster", "c.json", "-o", name)
        assert_refused(done, why)


def test_no_name_becomes_a_formula_of_a_spreadsheet(enplace, folder):
    (folder / "odd.json").write_text(
        json.dumps(model(["=1+1", "@SUM(A1)", "x; =cmd", "a-b=c", "\uff1d1"]))
    )
    assert enplace("place", "odd.json", "--cluster", "c.json", "-o", "plan.json").status == 0
    done = enplace("export", "odd.json", "plan.json", "--format", "csv", "-o", "out.csv")
    assert done.status == 0
    cells = [row[0] for row in csv.reader((folder / "out.csv").read_text().splitlines())]
    assert set(cells) == {"'=1+1", "'@SUM(A1)", "x; '=cmd", "'\uff1d1", "a-b=c", "op"}


@pytest.mark.parametrize(
    "character",
    [
        "\x85",
        "\x9b",
        "\u2028",
        "\u202e",
        "\u2066",
        "\u200f",
        "\u200b",
        "\u180e",
        "\u115f",
        "\xad",
        "\U000e0041",
    ],
)
def test_no_name_controls_the_terminal(enplace, folder, character):
    (folder / "odd.json").write_text(json.dumps(model([f"a{character}b", "loss"])))
    done = enplace("place", "odd.json", "--cluster", "c.json")
    assert_refused(done, "must be printable text")
    assert character not in done.err


def test_no_file_name_controls_the_terminal(enplace, folder):
    done = enplace("place", "p.json", "--cluster", "c.json", "-o", "a\u202eb\x1b[1m.json")
    assert done.status == 0
    assert "The plan is in a b [1m.json." in done.out


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("/dev/stdout", "ab"), ("/dev/stdout", "wb"), ("/dev/fd/1", "wb"), ("link", "ab")),
        *(("/proc/self/fd/1", "wb"), ("/proc/thread-self/fd/1", "ab")),
        ("/proc/self/task/../fd/1", "ab"),
    ],
)
def test_output_to_an_open_stream_is_added_to_its_file(folder, stdout_to, name, mode):
    Path("link").symlink_to("/dev/stdout")
    Path("log").write_text("before\n")
    with open("log", mode) as log, stdout_to(log):
        words = ["place", "p.json", "--cluster", "c.json", "--method", "single", "-o", name]
        assert run(words) == 0
    check_stream(mode)


def test_a_command_adds_its_output_to_the_file_that_a_shell_opened(folder):
    Path("log").write_text("before\n")
    words = ["place", "p.json", "--cluster", "c.json", "--method", "single", "-o", "/dev/stdout"]
    with open("log", "ab") as log:
        subprocess.run([sys.executable, "-m", "enplace", *words], stdout=log, check=True)
    check_stream("ab")


@pytest.fixture
def stdout_to():
    """A context in which this process writes its standard output to a file."""

    @contextmanager
    def redirect(file):
        usual = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            with open(1, "w", closefd=False) as stdout, redirect_stdout(stdout):
                yield
        finally:
            os.dup2(usual, 1)
            os.close(usual)

    return redirect


def check_stream(mode):
    text = Path("log").read_text()
    assert text.startswith("before\n") == (mode == "ab")
    assert text.index('"enplace-plan/') < text.index("busy")
    assert json.JSONDecoder().raw_decode(text[text.index("{") :])


@pytest.mark.parametrize(
    ("regex", "complaint"),
    [
        ("^(a|aa)+$", "matches none"),
        ("a{99999999}", "not a regex"),
        ("${9d<D{dw<", "matches none"),
        ("(((((a{99}){99}){99}){99}){99})", "not a regex"),
        ("(" * 50_000 + "b" + ")" * 50_000, "matches none"),
        ("(a?){1000}" * 20 + "[^a]$", "not a regex"),
        (r"(a)\1", "not a regex"),
    ],
)
def test_no_regex_takes_long_or_much_memory(enplace, folder, regex, complaint):
    (folder / "long.json").write_text(json.dumps(model(["a" * 60 + "!", "loss"])))
    done = enplace("place", "long.json", "--cluster", "c.json", "--pin", f"{regex}=0")
    assert done.status == 2
    assert complaint in done.err


def test_writing_to_a_pipe_does_not_replace_it(enplace, folder):
    os.mkfifo("pipe")
    end = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)
    done = enplace("place", "p.json", "--cluster", "c.json", "--method", "single", "-o", "pipe")
    assert done.status == 0
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert os.read(end, 1) == b"{"
    os.close(end)


def test_an_overwritten_file_keeps_its_permissions(enplace, folder):
    (folder / "plan.json").touch(mode=0o600)
    enplace("place", "p.json", "--cluster", "c.json", "--method", "single", "-o", "plan.json")
    assert stat.S_IMODE(os.stat("plan.json").st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-o", "c.json"], "c.json: is also an input"),
        (["-o", "s.json", "--schedule", "s.json"], "s.json: is named for two outputs"),
        (["-o", "s.json", "--schedule", "./s.json"], "is named for two outputs"),
        (["-o", ""], "'' is not a file"),
        (["-o", "-"], "'-' is not a file"),
    ],
)
def test_outputs_never_replace_inputs_or_each_other(enplace, folder, words, complaint):
    before = (folder / "c.json").read_text()
    done = enplace("place", "p.json", "--cluster", "c.json", "--method", "single", *words)
    assert done.status == 2
    assert complaint in done.err
    assert (folder / "c.json").read_text() == before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"ops": [], "ops": []}', 'an object holds "ops" twice'),
        ('{"ops": [], "edges": [], "measured": {"x": "\\ud800"}}', "half of a character"),
    ],
)
def test_ambiguous_json_is_refused(enplace, folder, text, complaint):
    (folder / "odd.json").write_text(text)
    done = enplace("import", "odd.json", "-o", "out.enplace")
    assert done.status == 2
    assert complaint in done.err
    assert "odd.json" in done.err


def test_total_sizes_that_overflow_are_refused(enplace, folder):
    data = model([f"op{i}" for i in range(2000)])
    for op in data["ops"]:
        op["persistent_bytes"] = 1 << 60
    (folder / "huge.json").write_text(json.dumps(data))
    done = enplace("import", "huge.json", "-o", "out.enplace")
    assert done.status == 2
    assert "all bytes together" in done.err


def test_a_cycle_of_symbolic_links_is_refused(enplace, folder):
    os.symlink("a", "b")
    os.symlink("b", "a")
    done = enplace("place", "p.json", "--cluster", "c.json", "--method", "single", "-o", "a")
    assert done.status == 2
    assert "not part of a cycle of links" in done.err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"devices": [{"name": f"GPU:{i}", "kind": "gpu"} for i in range(6000)]}, "at most 256"),
        ({"links": [{"from": ["GPU:0"] * 9, "to": ["GPU:1"] * 9}]}, "names a device twice"),
        (
            {
                "devices": [
                    {"name": f"GPU:{i}", "kind": "gpu", "capacity_bytes": 9} for i in range(99)
                ],
                "default_links": {
                    "gpu-gpu": {
                        "b0_us": 1,
                        "b1_us_per_byte": 1,
                        "channels": [f"c{i}" for i in range(700)],
                    }
                },
            },
            "name fewer",
        ),
        (
            {"devices": [{"name": "d" * 201, "kind": "gpu", "capacity_bytes": 9}]},
            "1 to 200 characters",
        ),
    ],
)
def test_a_cluster_that_multiplies_is_refused_before_its_links_are_made(
    enplace, folder, change, complaint
):
    (folder / "odd.json").write_text(json.dumps(machine() | change))
    done = enplace("place", "p.json", "--cluster", "odd.json", "--method", "single")
    assert done.status == 2
    assert complaint in done.err


def test_rules_that_would_be_matched_for_minutes_are_refused(enplace, folder, monkeypatch):
    monkeypatch.setattr("enplace.names.rules.MAX_MATCHES", 70)  # ten rules for seven ops
    (folder / "many.rules").write_text("encoder -> 0\n" * 11)
    words = ("--method", "expert", "--rules", "many.rules")
    done = enplace("place", "p.json", "--cluster", "c.json", *words)
    assert done.status == 2
    assert "line 11: more than 10 rules for 7 ops take too long" in done.err


def test_matching_rules_can_be_interrupted(folder):
    (folder / "some.rules").write_text("encoder -> 0\nloss -> 1\n")
    problem = problem_of("p.json", "c.json")

    def press_ctrl_c():
        raise CancelledError("stopped")

    with pytest.raises(CancelledError):
        read_rules("some.rules", problem, press_ctrl_c)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rules_in_millions_of_empty_lines_are_refused(enplace, folder, pack):
    (folder / "long.rules").write_bytes(pack(b"\n" * (5 << 20)))
    words = ("--method", "expert", "--rules", "long.rules")
    done = enplace("place", "p.json", "--cluster", "c.json", *words)
    assert_refused(done, "long.rules: ")


def test_too_many_rules_are_refused(enplace, folder):
    (folder / "many.rules").write_text("encoder -> 0\n" * 1001)
    words = ("--method", "expert", "--rules", "many.rules")
    done = enplace("place", "p.json", "--cluster", "c.json", *words)
    assert done.status == 2
    assert "line 1001: more than 1000 rules" in done.err
