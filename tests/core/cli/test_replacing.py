"""A command replaces a file of the kind that it writes, and keeps it; it refuses any other."""

from pathlib import Path

import pytest

from enplace.placers import place
from enplace.readers import read_profile
from enplace.readers.archive import Project, read_project
from enplace.readers.clusters import read_cluster
from enplace.values.problem import Problem
from enplace.writers import write_project

ON_C = ("--cluster", "c.json")
COMMANDS = {
    "import": ("import", "p.json", "-o"),
    "place": ("place", "p.json", *ON_C, "--method", "heft", "-o"),
    "the schedule of place": ("place", "p.json", *ON_C, "--method", "heft", "--schedule"),
    "simulate --trace": ("simulate", "p.json", "plan.json", *ON_C, "--trace"),
    "clusters": ("clusters", "pesto", "-o"),
    **{
        f"export --format {form}": ("export", "p.json", "plan.json", "--format", form, "-o")
        for form in ("csv", "html", "svg", "trace")
    },
}


@pytest.fixture
def planned(enplace, folder):
    assert enplace("place", "p.json", *ON_C, "--method", "heft", "-o", "plan.json").status == 0
    return folder


@pytest.fixture
def project(folder):
    profile = read_profile("p.json")
    found = place(Problem(profile, read_cluster("c.json")), "heft").plan
    write_project("project.enplace", Project(profile, plans=(("mine", found),)))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_a_command_wrote_it_replaces_and_keeps(enplace, planned, command):
    assert enplace(*command, "written").status == 0
    first = Path("written").read_bytes()
    assert enplace(*command, "written").status == 0
    assert Path("written~").read_bytes() == first


def test_a_read_only_plan_is_refused_before_the_work_and_not_kept(enplace, planned):
    Path("plan.json").chmod(0o444)
    refused = enplace(*COMMANDS["place"], "plan.json")
    assert refused.status == 2
    assert "plan.json: is read-only; change its permissions" in refused.err
    assert not Path("plan.json~").exists()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_replaces_a_file_of_another_kind_unless_it_is_told_to(enplace, planned, command):
    Path("train.py").write_text("import torch\n")
    refused = enplace(*command, "train.py")
    assert refused.status == 2
    assert "train.py: is no" in refused.err
    assert "--force" in refused.err
    assert Path("train.py").read_text() == "import torch\n"
    assert enplace(*command, "train.py", "--force").status == 0
    assert Path("train.py~").read_text() == "import torch\n"


def test_a_profile_replaces_no_project_but_a_profile(enplace, project):
    refused = enplace("import", "p.json", "-o", "project.enplace")
    assert refused.status == 2
    assert "a project of the studio" in refused.err
    assert len(read_project("project.enplace").plans) == 1
    Path("profile.enplace").write_bytes(b"")
    for _ in range(2):
        assert enplace("import", "p.json", "-o", "profile.enplace").status == 0


def test_one_kind_of_readable_file_does_not_replace_another(enplace, planned):
    for written, command in (("p.json", "place"), ("plan.json", "import"), ("c.json", "place")):
        before = Path(written).read_bytes()
        copy = Path(f"copy of {written}")
        copy.write_bytes(before)
        assert enplace(*COMMANDS[command], str(copy)).status == 2
        assert copy.read_bytes() == before
