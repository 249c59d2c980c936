import subprocess
import sys

import pytest

SCRIPT = """
import sys
import tempfile
from pathlib import Path
from PySide6.QtCore import QSettings
from enplace.readers.samples import samples
from enplace_studio.shell.application import make_application
from enplace_studio.shell.window import MainWindow

app = make_application()
folder = Path(tempfile.mkdtemp())
window = MainWindow(QSettings(str(folder / "s.ini"), QSettings.Format.IniFormat), folder / "r")
window.solver.solve = lambda *_, **__: None
window.show()
window.studio.files.open_sample(samples()[0])
window.studio.files.wait()
app.processEvents()
print(*sys.modules)
window.studio.measuring
import enplace_studio.frameworks.profile_page
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def loaded():
    """Modules after a sample was opened, and after the TensorFlow part was used."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    return set(before.split()), set(after.split())


def test_the_studio_never_imports_tensorflow(loaded):
    for modules in loaded:
        assert not {"tensorflow", "keras"} & {name.partition(".")[0] for name in modules}
        inside = "enplace.frameworks.tensorflow."
        known = {name for name in modules if name.startswith(inside)}
        without_it = ("framework", "snippet", "device_names", "error_text", "keras_file")
        without_it += ("saved_model_format",)
        assert known <= {inside + name for name in without_it}


def test_the_tensorflow_part_is_imported_on_first_use(loaded):
    before, after = loaded
    late = {"enplace_studio.frameworks", "enplace.frameworks.jobs"}
    assert not late & before
    assert late <= after
