import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog

import enplace as ep
from enplace_studio.serving.bars import CardBar
from enplace_studio.serving.dialog import ServingDialog
from enplace_studio.serving.sliders import StepSlider, steps
from stops import nameless_stops


@pytest.fixture
def dialog(qtbot):
    opened = []
    made = ServingDialog(lambda *paths: opened.append(paths))
    made.opened = opened
    qtbot.addWidget(made)
    made.show()
    made.background.wait()
    return made


def answer(dialog):
    dialog.ask()
    dialog.background.wait()
    return dialog.found


def test_the_first_answer_has_bars_figures_splits_and_strings(dialog):
    found = dialog.found
    assert dialog.speed.text() == f"{found.tokens_per_s:.3g} tokens per second"
    bars = dialog.findChildren(CardBar)
    assert [bar.title for bar in bars] == ["GPU 0 RTX 4090"]
    assert "32 layers, embedding, head" in bars[0].tip_at(None)
    assert "estimated" in dialog._facts.text()
    assert dialog.others.rowCount() == 5
    assert dialog.others.item(1, 0).text() == "vLLM, even"
    assert not nameless_stops(dialog)


def test_sliders_ask_again_and_name_the_limits(dialog, qtbot):
    alone = dialog.found.tokens_per_s
    dialog.requests.slider.setValue(dialog.requests.slider.maximum() // 3)
    qtbot.waitUntil(lambda: dialog.found.served.costs.wanted.requests > 1)
    dialog.background.wait()
    assert dialog.found.tokens_per_s > alone
    assert dialog.requests._note.text() == (
        f"most that fit the cards: {dialog.found.most_requests:,}"
    )


def test_each_program_has_its_words_and_they_can_be_copied(dialog):
    dialog.cards.setText("rtx-3060,rtx-4070")
    found = answer(dialog)
    assert "VLLM_PP_LAYER_PARTITION=" in dialog.text.toPlainText()
    dialog.cache.setCurrentText("8-bit")
    found = answer(dialog)
    assert "--kv-cache-dtype fp8" in dialog.text.toPlainText()
    dialog.program.setCurrentText("accelerate")
    assert dialog.text.toPlainText() == found.short_commands["accelerate"]
    dialog._copy()
    assert QGuiApplication.clipboard().text() == found.short_commands["accelerate"]
    dialog.cards.setText("rtx-4090,cpu:8GiB")
    answer(dialog)
    dialog.program.setCurrentText("vLLM")
    assert dialog.text.toPlainText().startswith("Not for vLLM: GPU 0 has the whole model")


def test_what_does_not_fit_or_is_no_card_is_said_in_place(dialog):
    dialog.cards.setText("rtx-3060")
    assert answer(dialog) is None
    assert dialog.speed.text() == "Does not fit"
    assert "llama-3.1-8b does not fit: 15.0 GiB of weights" in dialog._facts.text()
    assert not dialog.buttons.accept.isEnabled()
    dialog.cards.setText("rtx-306")
    answer(dialog)
    assert "did you mean 'rtx-3060'?" in dialog._facts.text()
    dialog.cards.setText("rtx-4090")
    assert answer(dialog).served.fits
    assert dialog.buttons.accept.isEnabled()


def test_the_answer_opens_as_a_plan(dialog, tmp_path, monkeypatch):
    path = tmp_path / "token.enplace"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (f"{path}", ""))
    dialog.accept()
    assert dialog.opened == [(path, tmp_path / "token.plan.json")]
    assert ep.read_plan(dialog.opened[0][1], path).fits


def test_a_slider_keeps_its_number_when_its_end_changes(qtbot):
    assert steps(1, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    slider = StepSlider("Context", "tokens", 256, 1 << 17, 4096)
    qtbot.addWidget(slider)
    slider.set_most(8192)
    assert slider.value == 4096
    slider.set_most(1024)
    assert slider.value == 1024


def test_the_table_of_splits_cuts_no_text_of_five_cards(dialog):
    dialog.model.setCurrentText("llama-3-70b-fp8")
    dialog.cards.setText("rtx-4090,3*rtx-a5000,rtx-3060:12GiB")
    answer(dialog)
    dialog.grab()  # lays it out
    table = dialog.others
    wanted = [table.sizeHintForColumn(at) for at in range(table.columnCount())]
    widths = [table.columnWidth(at) for at in range(table.columnCount())]
    assert all(width >= least for width, least in zip(widths, wanted, strict=True))
    assert sum(widths) <= table.viewport().width()
