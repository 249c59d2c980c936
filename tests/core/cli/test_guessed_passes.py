"""A guessed backward pass is said wherever a plan is shown, until the profile says the passes."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

GUESSED = "backward pass is guessed"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write a training step whose ops do not say their pass, and two GPUs."""
    monkeypatch.chdir(tmp_path)
    there, back = ([f"{way}/{i}" for i in range(4)] for way in ("fw", "bw"))
    edges = [*pairwise([*there, *reversed(back)]), *zip(there, back[1:], strict=False)]
    profile = {
        "format": "enplace-profile/1",
        "ops": [{"name": name, "time_us": {"gpu": 10}} for name in (*there, *back)],
        "edges": [{"src": a, "dst": b, "bytes": 8} for a, b in edges],
    }
    link = {"b0_us": 1, "b1_us_per_byte": 1e-4}
    gpus = [{"name": f"GPU:{i}", "kind": "gpu", "capacity_bytes": 1 << 30} for i in range(2)]
    cluster = {
        "format": "enplace-cluster/1",
        "devices": gpus,
        "default_links": {"gpu-gpu": link},
    }
    Path("p.json").write_text(json.dumps(profile))
    Path("c.json").write_text(json.dumps(cluster))
    return profile


def test_every_answer_says_that_the_backward_pass_was_guessed(files, enplace):
    of = ("--cluster", "c.json")
    piped = ("simulate", "p.json", "plan.json", *of, "--pipeline", "1f1b", "--microbatches")
    for command in (
        ("place", "p.json", *of, "-o", "plan.json"),
        ("compare", "p.json", *of, "--methods", "heft"),
        ("simulate", "p.json", "plan.json", *of),
        (*piped, "4"),
        (*piped, "2,4"),
    ):
        assert GUESSED in enplace(*command).out
        assert GUESSED in enplace(*command, "--json").document["guessed_backward"]


def test_a_file_holds_no_guesses_and_what_it_says_is_not_called_one(files, enplace):
    for name in ("q.json", "q.enplace"):
        assert GUESSED in enplace("import", "p.json", "-o", name).out
        assert GUESSED in enplace("import", name, "-o", "again.json").out
    written = json.loads(Path("q.json").read_text())
    assert not any("pass" in op for op in written["ops"])
    for op in written["ops"]:
        op["pass"] = "backward" if op["name"].startswith("bw") else "forward"
    written["measured"] = {"guessed_backward": "bw/3"}
    Path("q.json").write_text(json.dumps(written))
    placed = enplace("place", "q.json", "--cluster", "c.json", "-o", "plan.json")
    assert GUESSED not in placed.out
