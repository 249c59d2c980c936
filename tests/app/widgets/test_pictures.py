"""Pictures of views as files."""

import pytest
from PySide6.QtCore import QRect, QSize
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel, QPushButton

from enplace.errors import FileError
from enplace_studio.widgets.labels import label
from enplace_studio.widgets.panel import Panel, ScrollPanel
from enplace_studio.widgets.pictures import SHARPNESS, Drawing, draw_widget, write_picture


@pytest.fixture
def panel(qtbot):
    made = Panel("Fruit")
    qtbot.addWidget(made)
    for text in ("apples", "pears"):
        made.body.addWidget(label(text))
    made.resize(400, 200)
    made.show()
    qtbot.waitExposed(made)
    return made


def test_the_picture_of_a_panel_has_its_contents_and_a_title_of_its_own(panel, tmp_path):
    drawing = panel.drawing()
    write_picture(tmp_path / "p.svg", drawing, "Fruit of today")
    text = (tmp_path / "p.svg").read_text()
    assert all(word in text for word in ("Fruit of today", "apples", "pears"))
    assert ">Fruit<" not in text
    assert drawing.size.height() < panel.height()


def test_the_picture_stays_as_it_was_when_it_was_taken(panel, tmp_path):
    drawing = panel.drawing()
    for each in panel.findChildren(QLabel):
        each.setText("changed")
    write_picture(tmp_path / "p.svg", drawing, "Fruit")
    assert "changed" not in (tmp_path / "p.svg").read_text()


def test_a_part_of_a_widget_leaves_the_rest_out(panel, tmp_path):
    second = panel.body.itemAt(1).widget()
    write_picture(
        tmp_path / "p.svg", draw_widget("Pears", second.parentWidget(), second.geometry()), "Pears"
    )
    text = (tmp_path / "p.svg").read_text()
    assert "pears" in text
    assert "apples" not in text


def test_the_picture_of_a_folded_or_scrolled_pane_has_everything(qtbot, tmp_path):
    pane = ScrollPanel("Fruit")
    qtbot.addWidget(pane)
    column = pane.column.fill()
    for number in range(30):
        column.addWidget(label(f"apple {number}"))
    pane.resize(200, 100)
    pane.show()
    qtbot.waitExposed(pane)
    for folded in (False, True):
        pane.set_folded(folded)
        write_picture(tmp_path / "p.svg", pane.drawing(), "Fruit")
        text = (tmp_path / "p.svg").read_text()
        assert "apple 0" in text, folded
        assert "apple 29" in text, folded
        assert pane.is_folded == folded


def test_a_png_is_sharp(tmp_path):
    write_picture(tmp_path / "p.PNG", Drawing("", QSize(300, 100), lambda painter: None), "T")
    picture = QImage(str(tmp_path / "p.PNG"))
    assert picture.width() >= 300 * SHARPNESS
    assert picture.height() >= 100 * SHARPNESS


def test_a_pdf_is_one_page(panel, tmp_path):
    write_picture(tmp_path / "p.pdf", panel.drawing(), "Fruit")
    assert (tmp_path / "p.pdf").read_bytes().count(b"/Type /Page\n") == 1


def test_another_ending_is_refused(tmp_path):
    drawing = Drawing("", QRect(0, 0, 9, 9).size(), lambda painter: None)
    with pytest.raises(FileError, match=r"a picture is one of \.svg, \.png, \.pdf; rename it"):
        write_picture(tmp_path / "p.gif", drawing, "T")


def test_a_folder_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(FileError):
        write_picture(tmp_path / "no" / "p.svg", Drawing("", QSize(9, 9), lambda p: None), "T")


def test_no_button_is_in_a_picture(panel, tmp_path, qtbot):
    button = QPushButton("Press me")
    panel.body.addWidget(button)
    qtbot.waitUntil(button.isVisible)
    write_picture(tmp_path / "p.svg", draw_widget("Fruit", panel), "Fruit")
    text = (tmp_path / "p.svg").read_text()
    assert "apples" in text
    assert "Press me" not in text
    assert button.isVisible()
