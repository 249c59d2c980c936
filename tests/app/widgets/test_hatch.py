"""Marks beside colours."""

import itertools

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QImage, QPainter

from enplace_studio.widgets.hatch import paint_notches
from enplace_studio.widgets.theme import theme


def count_notches(height, n):
    """Paint a bar with notches, and count the breaks that an eye would see."""
    image = QImage(3, height, QImage.Format.Format_RGB32)
    image.fill(theme.device_color(n))
    with QPainter(image) as painter:
        paint_notches(painter, QRectF(0, 0, 3, height), QColor("white"), n)
    shades = [image.pixelColor(1, y) != theme.device_color(n) for y in range(height)]
    return sum(broken for broken, _ in itertools.groupby(shades))


@pytest.mark.parametrize("device", range(8))
def test_a_device_has_as_many_notches_as_its_number(qapp, device):
    assert theme.notches(theme.device_color(device)) == device
    assert count_notches(60, device) == device


def test_other_colours_have_none(qapp):
    assert theme.notches(theme.tokens.bad) == 0


def test_notches_too_close_to_be_told_apart_are_left_out(qapp):
    assert count_notches(8, 7) == 0
