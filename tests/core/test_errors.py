"""What a script shows that an error ends."""

import subprocess
import sys

import pytest

APPLY = "import enplace\n\ndef begin():\n    enplace.apply(3)\n\n"


def ended(tmp_path, code):
    (tmp_path / "train.py").write_text(code)
    words = [sys.executable, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    return done.stderr


def test_an_error_of_apply_is_one_line_with_the_line_of_the_script(tmp_path):
    shown = ended(tmp_path, f"{APPLY}begin()\n")
    assert shown == "enplace: train.py, line 4: path is 3; use a file's name\n"


@pytest.mark.parametrize(
    ("own", "last"),
    [
        ("raise ValueError('odd')", "ValueError: odd"),
        ("import sys\nsys.excepthook = lambda *_: print('own', file=sys.stderr)\nbegin()", "own"),
    ],
)
def test_other_errors_and_other_ways_to_show_them_are_as_usual(tmp_path, own, last):
    caught = "try:\n    begin()\nexcept enplace.EnplaceError:\n    pass\n"
    assert ended(tmp_path, f"{APPLY}{caught}{own}\n").splitlines()[-1] == last
