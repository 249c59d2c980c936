from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication

from enplace_studio.start_page import StartPage


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
