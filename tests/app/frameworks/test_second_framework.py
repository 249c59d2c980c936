"""A second framework is one folder: the studio then offers all it brings."""

import pytest
from PySide6.QtWidgets import QFileDialog, QLabel, QPushButton, QWidget

from enplace.frameworks.registry import frameworks
from enplace.frameworks.source import source_of
from enplace_studio.frameworks.dialogs import RunQuestion
from enplace_studio.frameworks.open_model import OpenModel
from enplace_studio.model.can_run import is_model
from enplace_studio.shell.about import framework_names
from enplace_studio.shell.start_page import StartPage
from fake_framework import add_second_framework


@pytest.fixture(autouse=True)
def second(monkeypatch, tmp_path, fake_worker):
    add_second_framework(monkeypatch, tmp_path)


@pytest.fixture
def dialog(qtbot, model):
    """The dialog that opens a model of the second framework."""
    parent = QWidget()
    qtbot.addWidget(parent)
    return OpenModel(model("candle.flame"), parent)


def test_its_model_is_described_with_its_own_fields(dialog):
    assert dialog.what.text() == "A flame. It burns once."
    assert dialog.form.isRowVisible(dialog.fields["batch_size"])
    assert dialog.fields["batch_size"].specialValueText() == "one spark"
    assert not dialog.form.isRowVisible(dialog.fields["arguments"])
    loss = dialog.fields["loss"]
    assert [loss.itemText(i) for i in range(loss.count())] == ["soot"]
    dialog.fields["wick_length"].setEditText("long")
    dialog.accept()
    assert dialog.request.source.framework is frameworks()["torchlight"]
    assert dialog.request.source.options == {"wick_length": "long"}


@pytest.mark.parametrize(
    ("imported", "description", "compiles"),
    [
        ("tensorflow", "A training script. It runs", False),
        ("torchlight", "A script by torchlight.", True),
    ],
)
def test_a_script_is_described_by_the_framework_that_it_imports(
    dialog, model, imported, description, compiles
):
    script = model("train.py")
    script.write_text(f"import {imported}\n")
    dialog.path.setText(str(script))
    assert dialog.what.text().startswith(description)
    assert dialog.form.isRowVisible(dialog.fields["arguments"])
    assert dialog.form.isRowVisible(dialog.fields["compile"]) is compiles
    dialog.fields["compile"].setChecked(True)
    dialog.accept()
    assert dialog.request.source.framework_name == imported
    assert dialog.request.source.options == ({"compile": True} if compiles else {})


def test_its_files_are_offered_and_recognised(dialog, model, monkeypatch):
    filters = []

    def choose(parent, title, folder, pattern):
        filters.append(pattern)
        return "", ""

    monkeypatch.setattr(QFileDialog, "getOpenFileName", choose)
    next(b for b in dialog.findChildren(QPushButton) if b.text() == "File…").click()
    assert "*.flame" in filters[0]
    assert is_model(model("candle.flame"))


def test_the_texts_name_both(qtbot):
    page = StartPage()
    qtbot.addWidget(page)
    texts = " ".join(shown.text() for shown in page.findChildren(QLabel))
    assert "With TensorFlow installed" in texts
    assert "With Torchlight installed, a model too: a flame (.flame)." in texts
    assert framework_names() == "TensorFlow, PyTorch, Torchlight, ONNX"


def test_only_devices_that_it_can_have_are_offered(dialog):
    devices = [dialog.devices.itemData(i) for i in range(dialog.devices.count())]
    assert "cpu:1" in devices
    assert "cpu:2" not in devices
    assert None not in devices  # no cluster file with hosts


def test_a_run_is_asked_for_with_its_own_wishes(dialog, model):
    source = source_of(str(model("candle.flame")))
    question = RunQuestion("A", source, "1 GPU", "", dialog)
    assert list(question.fields) == ["brightness"]
    assert question.fields["brightness"].specialValueText() == "1"
    assert question.wishes == {}
    question.fields["brightness"].setValue(3)
    assert question.wishes == {"brightness": 3}
