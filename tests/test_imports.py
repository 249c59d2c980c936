import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import enplace

ROOT = Path(__file__).parent.parent
HEAVY = {"PySide6", "tensorflow", "torch", "enplace_studio"}


def loaded_after(statement: str) -> set[str]:
    """Return all modules that a fresh interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def library_modules() -> list[str]:
    """List all library modules except those that only a worker with its framework imports."""
    core = ROOT / "core"
    workers = {core / "enplace" / "frameworks" / name for name in ("tensorflow", "torch")}
    paths = sorted(p for p in (core / "enplace").rglob("*.py") if not workers & {*p.parents})
    names = [".".join(path.relative_to(core).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def test_the_whole_library_loads_without_qt_or_tensorflow():
    loaded = loaded_after("import " + ", ".join(library_modules()))
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


def test_the_document_imports_no_widgets():
    assert "PySide6.QtWidgets" not in loaded_after("import enplace_studio.model.document")


def test_solver_processes_load_nothing_slow():
    handlers = [name for name in library_modules() if name.endswith("_process")]
    solvers = [name for name in handlers if name.startswith("enplace.solvers.")]
    loaded = loaded_after("import " + ", ".join(solvers))
    assert not {"numba", "scipy", "networkx"} & loaded


def test_package_and_metadata_have_the_same_version():
    assert version("enplace") == enplace.__version__


def test_the_changelog_describes_this_version():
    assert f"## {enplace.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def files_below(folder: Path) -> set[Path]:
    paths = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in paths if "__pycache__" not in path.parts}


def test_an_installed_copy_contains_every_module_and_data_file(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    made = {path for path in files_below(tmp_path / "enplace") if path.parts[0] != "compiled"}
    assert made == files_below(ROOT / "core" / "enplace")
    assert files_below(tmp_path / "enplace_studio") == files_below(ROOT / "app" / "enplace_studio")
    assert files_below(tmp_path / "enplace_resources") == files_below(ROOT / "resources")


@pytest.mark.parametrize("extra", ["studio", "tensorflow", "notebook", "dev", None])
def test_every_requirement_has_a_tested_version(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    missing = [name for name in wanted if name.partition(">=")[0].lower() not in pinned]
    assert not missing, f"add these to constraints.txt: {missing}"
