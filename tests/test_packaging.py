"""What packages tell a desktop, a shell and an installer is right, and the same everywhere."""

import configparser
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml

import enplace
from enplace.cli import cli

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MIME = "{http://www.freedesktop.org/standards/shared-mime-info}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONTEXT = click.Context(cli, info_name="enplace")


@pytest.fixture(scope="module")
def man_pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    program = str(PACKAGING / "man_page.py")
    subprocess.run([sys.executable, program, str(folder)], check=True)
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def desktop_entry():
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(PACKAGING / "enplace.desktop", encoding="utf-8")
    return parser["Desktop Entry"]


def test_the_metadata_tells_what_an_index_shows():
    found = metadata("enplace")
    assert found["Version"] == enplace.__version__
    assert found["Summary"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in found.get_all("Classifier")


def test_the_studio_needs_nothing_that_must_be_compiled():
    names = {each.partition(">")[0] for each in PROJECT["optional-dependencies"]["studio"]}
    assert names == {"pyside6-essentials"}


def test_both_packages_say_that_they_are_typed():
    assert (ROOT / "core" / "enplace" / "py.typed").is_file()
    assert (ROOT / "app" / "enplace_studio" / "py.typed").is_file()


def test_the_menu_entry_starts_the_studio_with_a_file():
    entry = desktop_entry()
    program, argument = entry["Exec"].split()
    assert program in PROJECT["gui-scripts"]
    assert argument == "%f"
    assert (ROOT / "resources" / "icons" / f"{entry['Icon']}.svg").is_file()
    assert entry["Type"] == "Application"
    assert all(
        value.endswith(";") for key, value in entry.items() if key in ("Categories", "MimeType")
    )


def test_a_project_is_of_the_type_that_the_studio_opens():
    (kind,) = ElementTree.parse(PACKAGING / "enplace-mime.xml").getroot()
    assert desktop_entry()["MimeType"] == f"{kind.get('type')};"
    assert [glob.get("pattern") for glob in kind.iter(f"{MIME}glob")] == ["*.enplace"]
    assert kind.findtext(f"{MIME}comment")


@pytest.mark.parametrize("name", cli.list_commands(CONTEXT))
def test_the_manual_has_every_command_with_every_option(name, man_pages):
    command = cli.get_command(CONTEXT, name)
    _, _, after = man_pages["enplace.1"].partition(f".SS enplace {name} ")
    section = after.partition(".SS ")[0].replace("\\-", "-")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert any(option in section for option in parameter.opts), parameter.opts


def test_the_manual_has_no_line_that_troff_would_take_for_a_request(man_pages):
    known = (".TH", ".SH", ".SS", ".PP", ".TP", ".B ", ".BR")
    for page in man_pages.values():
        assert all(line.startswith(known) for line in page.splitlines() if line.startswith("."))
        assert f"Enplace {enplace.__version__}" in page


def test_the_debian_package_and_the_folder_take_their_version_from_the_wheel():
    for script in ("make-folder.sh", "make-deb.sh"):
        assert enplace.__version__ not in (PACKAGING / script).read_text(encoding="utf-8")


@pytest.mark.parametrize("script", sorted(PACKAGING.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_valid_and_say_what_they_are_for(script):
    shell = "bash" if "bash" in script.read_text().partition("\n")[0] else "sh"
    subprocess.run([shell, "-n", str(script)], check=True)
    assert script.read_text().splitlines()[1].startswith("# ")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_can_be_read_and_runs_only_what_there_is(workflow):
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    words = [word for line in commands if line.startswith("make ") for word in line.split()[1:]]
    targets = {word for word in words if "=" not in word}
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in made for target in targets)
    words = [word for line in commands for word in line.split()]
    scripts = [word for word in words if word.endswith(".sh")]
    assert all((ROOT / script).is_file() for script in scripts)
    assert targets or scripts
