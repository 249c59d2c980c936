from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel

from enplace_studio.shell.start_page import StartPage, _Picture
from enplace_studio.widgets.theme import theme


def test_a_card_tells_the_size_of_its_sample_and_opens_it(qtbot):
    page = StartPage()
    qtbot.addWidget(page)
    page.show()
    card = page.cards[0]
    shown = {label.text() for label in card.findChildren(QLabel)}
    assert "3,776 ops  ·  9.2 GiB on one GPU" in shown
    assert card.accessibleName() == "RNN language model, 3,776 ops  ·  9.2 GiB on one GPU"
    opened = []
    page.sample_chosen.connect(opened.append)
    QTest.keyClick(card, Qt.Key.Key_Return)
    assert [sample.name for sample in opened] == ["rnnlm-2-2048"]


def test_the_page_names_what_is_being_opened(qtbot):
    page = StartPage()
    qtbot.addWidget(page)
    page.show_opening("mine.enplace")
    assert page.opening.text() == "Opening mine.enplace …"
    page.show_opening("")
    assert page.opening.text() == ""


def test_every_picture_is_painted_in_the_colours_of_devices(qtbot):
    page = StartPage()
    qtbot.addWidget(page)
    page.show()
    for card in page.cards:
        picture = card.findChild(_Picture).grab().toImage()
        found = {
            picture.pixelColor(x, y).name()
            for x in range(picture.width())
            for y in range(picture.height())
        }
        assert {theme.device_color(0).name(), theme.device_color(1).name()} <= found


def test_the_samples_follow_the_texts_however_tall_the_window_is(qtbot):
    page = StartPage()
    qtbot.addWidget(page)
    page.show()
    tops = set()
    for height in (700, 1400):
        page.resize(1440, height)
        QApplication.processEvents()
        tops.add(page.cards[0].mapTo(page, QPoint()).y())
    assert len(tops) == 1
