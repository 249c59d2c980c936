"""The look of the studio: Fusion, a palette and one style sheet, made from the theme's tokens."""

from __future__ import annotations

from importlib import resources

from PySide6.QtGui import QColor, QIcon, QPalette
from PySide6.QtWidgets import QApplication

from enplace_studio.widgets.theme import Theme, css_colors

FILE_ICONS = "enplace-files"
"""The icon theme of the file dialog, where the desktop has no dialog of its own."""

_SHEET = """
QWidget {{ color: {text}; font-size: {px12}px; }}
QMainWindow, QDialog, QMessageBox, #header, #page, QStatusBar {{ background: {bg}; }}
QToolTip {{ background: {panel}; color: {text}; border: 1px solid {line}; padding: 4px 6px; }}

QFrame[card="true"] {{ background: {panel}; border: 1px solid {line}; border-radius: 8px; }}
QFrame[card="true"][clickable="true"]:hover {{ background: {hover}; }}
QFrame[card="true"][clickable="true"]:focus {{ border-color: {accent}; }}

QLabel {{ background: transparent; border: none; }}
QLabel[role="title"] {{ font-weight: 600; }}
QLabel[role="heading"] {{ font-size: {px16}px; font-weight: 600; }}
QLabel[role="welcome"] {{ font-size: {px22}px; font-weight: 600; }}
QLabel[role="number"] {{ font-size: {px15}px; font-weight: 600; }}
QLabel[role="strong"] {{ font-size: {px11}px; font-weight: 600; }}
QLabel[role="small"] {{ font-size: {px11}px; }}
QLabel[role="dim"] {{ color: {dim}; font-size: {px11}px; }}
QLabel[role="badge"] {{
    background: {text}; color: {panel}; border-radius: 4px;
    font-size: {px11}px; font-weight: 600;
}}
QLabel[role="good"] {{ color: {good}; font-size: {px11}px; font-weight: 500; }}
QLabel[role="bad"] {{ color: {bad}; font-size: {px11}px; font-weight: 500; }}

QPushButton, QToolButton[flat="false"] {{
    background: {panel}; border: 1px solid {line}; border-radius: 6px;
    padding: 6px 14px; font-weight: 500;
}}
QPushButton:hover, QToolButton[flat="false"]:hover {{ background: {hover}; }}
QPushButton[switch="true"] {{
    border-color: transparent; background: transparent; color: {dim}; padding: 2px 8px;
}}
QPushButton[switch="true"]:checked {{ background: {lane}; color: {text}; }}
QPushButton[switch="true"]:focus {{ border-color: {accent}; }}
QPushButton:pressed {{ background: {lane}; }}
QPushButton:focus {{ border-color: {accent}; }}
QPushButton:disabled {{ color: {faint}; }}
QMessageBox {{
    messagebox-question-icon: none; messagebox-information-icon: none;
    messagebox-warning-icon: none; messagebox-critical-icon: none;
}}
QFileDialog QToolButton {{
    background: transparent; border: none; border-radius: 4px; padding: 4px;
}}
QFileDialog QToolButton:hover, QFileDialog QToolButton:checked {{ background: {hover}; }}
QDialogButtonBox {{ dialogbuttonbox-buttons-have-icons: 0; }}
QPushButton::menu-indicator {{ image: none; width: 0; }}
QPushButton[accent="true"] {{
    background: {accent}; border-color: {accent}; color: {on_accent}; font-weight: 600;
}}
QPushButton[accent="true"]:hover {{ background: {accent_hover}; }}
QPushButton[accent="true"]:focus {{ border-color: {text}; }}
QPushButton[accent="true"]:disabled {{ background: {lane}; border-color: {line}; color: {faint}; }}
QPushButton[link="true"] {{
    background: transparent; border: none; padding: 2px 4px; color: {accent}; font-weight: 600;
}}
QPushButton[link="true"][flush="true"], #live QPushButton[link="true"] {{ padding: 2px 0; }}
QFrame[card="true"] > QPushButton[link="true"] {{ padding: 2px 0; font-size: {px11}px; }}
QPushButton[link="true"]:hover, QPushButton[link="true"]:focus {{ text-decoration: underline; }}
QPushButton[link="true"]:disabled {{ color: {faint}; }}
QPushButton[quiet="true"] {{
    background: transparent; border: none; padding: 3px 0; text-align: left; font-weight: 400;
}}
QPushButton[quiet="true"]:hover, QPushButton[quiet="true"]:focus {{ text-decoration: underline; }}

QToolButton[fold="true"] {{
    background: transparent; border: none; color: {dim}; padding: 0; font-size: {px12}px;
}}
QToolButton[fold="true"]:hover, QToolButton[fold="true"]:focus {{ color: {accent}; }}

QMenuBar {{ background: {bg}; padding: 2px 6px; }}
QMenuBar::item {{ background: transparent; padding: 3px 8px; border-radius: 4px; color: {dim}; }}
QMenuBar::item:selected {{ background: {hover}; color: {text}; }}
QMenu {{ background: {panel}; border: 1px solid {line}; padding: 4px; }}
QMenu::item {{ padding: 5px 24px 5px 22px; border-radius: 4px; }}
QMenu::item:selected {{ background: {hover}; }}
QMenu::item:disabled {{ color: {faint}; }}
QMenu::separator {{ height: 1px; background: {line}; margin: 4px 8px; }}

QLineEdit, QComboBox, QSpinBox, QDoubleSpinBox, QPlainTextEdit {{
    background: {panel}; border: 1px solid {line}; border-radius: 6px; padding: 5px 8px;
    selection-background-color: {accent}; selection-color: {on_accent};
}}
QLineEdit:focus, QComboBox:focus, QSpinBox:focus, QPlainTextEdit:focus {{ border-color: {accent}; }}

QComboBox QLineEdit {{ background: transparent; border: none; padding: 0; }}
QSpinBox {{ padding: 3px 0 4px 0; }}
QSpinBox QLineEdit {{ background: transparent; border: none; padding: 0; }}
QSpinBox::up-button, QSpinBox::down-button {{ width: 0; border: none; }}
QComboBox::drop-down {{ border: none; width: 24px; }}
QComboBox::down-arrow {{ image: url("{chevron}"); width: 12px; height: 12px; }}
QComboBox QAbstractItemView {{ padding: 4px; }}
QCheckBox {{ spacing: 8px; }}
QCheckBox::indicator, QTableView::indicator, QListView::indicator {{
    width: 14px; height: 14px; border: 1px solid {dim}; border-radius: 4px; background: {panel};
}}
QCheckBox::indicator:checked, QTableView::indicator:checked, QListView::indicator:checked {{
    background: {accent}; border-color: {accent}; image: url("{check}");
}}
QCheckBox::indicator:focus {{ border-color: {accent}; }}

QListView, QTableView, QTreeView {{
    background: {panel}; border: 1px solid {line}; border-radius: 6px; outline: none;
    gridline-color: {line}; alternate-background-color: {lane};
    selection-background-color: {hover}; selection-color: {text};
}}
QListView[plain="true"] {{ border: none; }}
QListView[bare="true"] {{ background: transparent; border: none; }}
QListView::item {{ padding: 5px 8px; border-radius: 4px; }}
QTableView::item {{ padding: 0 5px; }}
QListView::item:selected, QTableView::item:selected {{ background: {hover}; color: {text}; }}
QHeaderView::section {{
    background: {panel}; color: {dim}; border: none; border-bottom: 1px solid {line};
    padding: 5px 8px; font-size: {px11}px;
}}
QTableCornerButton::section {{ background: {panel}; border: none; }}

QSlider::groove:horizontal {{ height: 4px; border-radius: 2px; background: {line}; }}
QSlider::handle:horizontal {{
    width: 14px; height: 14px; margin: -5px 0; border-radius: 7px; background: {accent};
}}
QSlider::handle:horizontal:focus {{ border: 2px solid {text}; width: 10px; height: 10px; }}

QScrollArea, QScrollArea > QWidget > QWidget#page {{ background: transparent; border: none; }}
QScrollBar:vertical {{ background: transparent; width: 10px; margin: 0; }}
QScrollBar:horizontal {{ background: transparent; height: 10px; margin: 0; }}
QScrollBar::handle {{ background: {line}; border-radius: 4px; margin: 1px; }}
QScrollBar::handle:vertical {{ min-height: 28px; }}
QScrollBar::handle:horizontal {{ min-width: 28px; }}
QScrollBar::handle:hover {{ background: {faint}; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}

QToolBar {{ background: {bg}; border: none; padding: 0; spacing: 0; }}
QMainWindow::separator {{ background: {bg}; width: 4px; height: 4px; }}
QMainWindow::separator:hover {{ background: {hover}; }}
QDockWidget {{ border: none; }}
QStatusBar {{ border: none; }}
QStatusBar::item {{ border: none; }}
QProgressBar {{
    background: {lane}; border: none; border-radius: 2px; max-height: 4px; min-height: 4px;
}}
QProgressBar::chunk {{ background: {accent}; border-radius: 2px; }}

#banner {{ background: {panel}; border: 1px solid {bad}; border-radius: 8px; }}
#tour {{ background: {panel}; border: 1px solid {accent}; border-radius: 8px; }}
#tour-frame {{ background: transparent; border: 2px solid {accent}; border-radius: 9px; }}
#toast {{ background: {panel}; border: 1px solid {line}; border-radius: 8px; }}
QLabel#dot {{ font-size: {px11}px; }}
"""


def apply_style(app: QApplication, theme: Theme) -> None:
    """Give the application the theme's look, and again whenever the theme changes."""
    app.setStyle("Fusion")
    use_file_icons()
    theme.changed.connect(lambda: _apply(app, theme))
    _apply(app, theme)


def use_file_icons() -> None:
    """Show our icons in the file dialog."""
    icons = resources.files("enplace_resources") / "icons"
    QIcon.setThemeSearchPaths([*QIcon.themeSearchPaths(), str(icons)])
    QIcon.setThemeName(FILE_ICONS)


def _apply(app: QApplication, theme: Theme) -> None:
    app.setFont(theme.font())
    app.setPalette(make_palette(theme))
    app.setStyleSheet(make_sheet(theme))


def make_sheet(theme: Theme) -> str:
    """Make the style sheet with the theme's colours and sizes."""
    sizes = {f"px{size}": round(size * theme.scale) for size in (11, 12, 15, 16, 22)}
    hover = theme.tokens.accent.lighter(112) if theme.dark else theme.tokens.accent.darker(108)
    icons = resources.files("enplace_resources") / "icons"
    return _SHEET.format(
        **css_colors(theme.tokens),
        **sizes,
        accent_hover=hover.name(),
        chevron=icons / "chevron.svg",
        check=icons / f"check-{'dark' if theme.dark else 'light'}.svg",
    )


def make_palette(theme: Theme) -> QPalette:
    """Make the palette for what the style sheet does not cover."""
    tokens, role = theme.tokens, QPalette.ColorRole
    palette = QPalette()
    colors: dict[QPalette.ColorRole, QColor] = {
        role.Window: tokens.bg,
        role.Base: tokens.panel,
        role.AlternateBase: tokens.lane,
        role.Button: tokens.panel,
        role.ToolTipBase: tokens.panel,
        role.ToolTipText: tokens.text,
        role.WindowText: tokens.text,
        role.Text: tokens.text,
        role.ButtonText: tokens.text,
        role.PlaceholderText: tokens.faint,
        role.Highlight: tokens.accent,
        role.HighlightedText: tokens.on_accent,
        role.Link: tokens.accent,
        role.Mid: tokens.line,
        role.Light: tokens.panel,
        role.Dark: tokens.line,
    }
    for name, color in colors.items():
        palette.setColor(name, color)
    for name in (role.Text, role.ButtonText, role.WindowText):
        palette.setColor(QPalette.ColorGroup.Disabled, name, tokens.faint)
    return palette
