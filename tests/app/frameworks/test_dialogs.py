from dataclasses import replace

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPlainTextEdit, QPushButton, QWidget

from enplace.frameworks.framework import Framework
from enplace.frameworks.source import source_of
from enplace_studio.frameworks.devices import DeviceChoice
from enplace_studio.frameworks.dialogs import FailureReport, RunQuestion, TrustQuestion
from enplace_studio.frameworks.open_model import OpenModel


@pytest.fixture
def parent(qtbot):
    made = QWidget()
    qtbot.addWidget(made)
    return made


@pytest.fixture
def ask(parent, model):
    """Open the dialog for a model of this name."""
    return lambda name: OpenModel(model(name) if name else None, parent)


def shown_fields(dialog):
    return {key for key, field in dialog.fields.items() if dialog.form.isRowVisible(field)}


def test_the_dialog_explains_what_can_be_opened(ask):
    dialog = ask("")
    assert "SavedModel" in dialog.what.text()
    assert not dialog.profile_button.isEnabled()
    assert shown_fields(dialog) == set()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("train.py", {"arguments", "batch_size", "keep_device_scopes"}),
        ("model.h5", {"loss", "optimizer", "batch_size"}),
        ("graph.pbtxt", {"batch_size", "keep_device_scopes"}),
    ],
)
def test_the_fields_depend_on_the_kind_of_model(ask, name, fields):
    dialog = ask(name)
    assert shown_fields(dialog) == fields
    assert dialog.profile_button.isEnabled()


def test_a_saved_model_is_profiled_for_inference_unless_it_has_a_loss(parent, model):
    folder = model("saved_model.pb").parent
    dialog = OpenModel(folder, parent)
    assert shown_fields(dialog) == {"signature", "loss", "optimizer", "batch_size"}
    dialog.accept()
    assert (dialog.request.source.kind, dialog.request.source.text("loss")) == ("saved-model", "")


def test_a_keras_model_trains_with_its_own_loss_unless_another_is_given(parent, model):
    dialog = OpenModel(model("model.h5"), parent)
    assert dialog.fields["loss"].lineEdit().placeholderText() == "the model’s own"
    dialog.accept()
    assert dialog.request.source.options == {}


def test_the_request_holds_what_was_typed(ask):
    dialog = ask("train.py")
    dialog.fields["arguments"].setText("--name 'two words' --batch {batch}")
    dialog.fields["batch_size"].setValue(64)
    dialog.batch_sizes.setText("8, 16 32")
    dialog.steps.setValue(30)
    dialog.accept()
    request = dialog.request
    assert request.source.arguments == ("--name", "two words", "--batch", "{batch}")
    assert (request.steps, request.warm_ups, request.batch_sizes) == (30, 10, (8, 16, 32))
    assert request.devices == dialog.devices.text


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("batch_sizes", "8, many", "many"),
        ("batch_sizes", "8, 16", "where does it take its batch size"),
        ("arguments", "--name 'half", "quotation mark"),
    ],
)
def test_an_invalid_input_is_explained_and_nothing_starts(ask, field, text, message):
    dialog = ask("train.py")
    (dialog.fields.get(field) or dialog.batch_sizes).setText(text)
    dialog.accept()
    assert dialog.request is None
    assert message in dialog.what.text()


def test_a_file_that_is_not_a_model_is_rejected_with_the_reason(ask):
    dialog = ask("notes.txt")
    assert "notes.txt" in dialog.what.text()
    assert not dialog.profile_button.isEnabled()


def test_without_tensorflow_the_dialog_explains_how_to_add_it(ask, monkeypatch):
    monkeypatch.setattr(Framework, "is_installed", False)
    dialog = ask("train.py")
    assert not dialog.profile_button.isEnabled()
    assert not dialog.missing.isHidden()
    assert "pip install" in dialog.missing.text()


def test_a_cluster_file_can_be_chosen(qtbot, tmp_path):
    choice = DeviceChoice()
    qtbot.addWidget(choice)
    choice.add_file(tmp_path / "hosts.json")
    assert choice.text == str(tmp_path / "hosts.json")
    assert choice.currentText() == "Hosts of hosts.json"


def test_cpus_are_not_called_gpus():
    from enplace.readers.clusters import presets
    from enplace_studio.frameworks.devices import devices_title
    from problems import cluster_of

    assert devices_title(presets()["cpu-2"]) == "2 logical CPU devices"
    assert devices_title(cluster_of(2, cpu_lanes=1)) == "2 GPUs"


def test_the_failure_report_shows_and_copies_the_last_lines(parent):
    report = FailureReport("train.py could not be profiled", "it crashed", "one\ntwo", parent)
    assert report.why == "It crashed."
    assert report.findChild(QPlainTextEdit).toPlainText() == "one\ntwo"
    copy = next(b for b in report.findChildren(QPushButton) if b.text() == "Copy")
    copy.click()
    assert QGuiApplication.clipboard().text() == "one\ntwo"


def test_without_output_the_report_is_a_sentence(parent):
    report = FailureReport("train.py could not be profiled", "no train step.", "", parent)
    assert report.findChild(QPlainTextEdit) is None


def test_a_run_keeps_the_order_unless_that_is_not_wished(parent, model):
    question = RunQuestion("A", source_of(str(model("train.py"))), "2 GPUs", "", parent)
    assert list(question.fields) == ["order"]  # no pipelines
    assert question.wishes == {}
    question.fields["order"].setChecked(False)
    assert question.wishes == {"order": False}


def test_a_pytorch_script_is_measured_or_estimated_for_a_gpu(ask, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    dialog = ask("")
    dialog.path.setText(str(script))
    assert "until steps of its optimiser are recorded" in dialog.what.text()
    gpu = dialog.fields["estimate"]
    assert dialog.form.isRowVisible(gpu)
    assert "h100" in [gpu.itemText(i) for i in range(gpu.count())]
    assert dialog.form.isRowVisible(dialog.steps)
    assert not dialog.form.isRowVisible(dialog.batch_sizes)  # only of TensorFlow
    gpu.setEditText("h100")
    assert not dialog.form.isRowVisible(dialog.steps)  # nothing is measured
    dialog.accept()
    assert dialog.request.source.text("estimate") == "h100"


def test_a_program_of_torch_export_is_opened_without_a_measurement(ask, tmp_path):
    program = tmp_path / "model.pt2"
    program.write_bytes(b"PK")
    dialog = ask("")
    dialog.path.setText(str(program))
    assert "Nothing in it runs" in dialog.what.text()
    assert shown_fields(dialog) == {"batch_size", "sizes", "estimate"}
    assert not dialog.form.isRowVisible(dialog.steps)
    assert dialog.profile_button.text() == "Open"
    dialog.fields["sizes"].setText("s70=128")
    dialog.accept()
    assert dialog.request.source.options == {"sizes": (("s70", 128),)}


@pytest.mark.parametrize("words", [0, 8])
def test_the_whole_command_is_in_view(parent, model, words):
    arguments = tuple(f"--setting-{number}" for number in range(words))
    source = replace(source_of(model("train.py")), arguments=arguments)
    question = TrustQuestion(source, "profile it", False, parent)
    question.show()
    bar = question.findChild(QPlainTextEdit).verticalScrollBar()
    assert bar.minimum() == bar.maximum()
    question.close()


def test_a_box_to_tick_has_a_row_as_high_as_its_neighbours(ask):
    dialog = ask("train.py")
    dialog.show()
    box, line = dialog.fields["keep_device_scopes"], dialog.fields["arguments"]
    assert box.height() == line.height()
    dialog.close()
