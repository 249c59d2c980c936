"""How Sphinx builds the manual; `make docs` adds the generated pages first."""

from pathlib import Path

from docutils import nodes

import enplace_resources
from enplace import __version__

project = "Enplace"
copyright = "The Enplace maintainers"  # noqa: A001
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes = False  # it turns the dashes of --option into one

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Enplace {__version__}"
html_logo = html_favicon = str(Path(enplace_resources.__file__).parent / "icons" / "enplace.svg")
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1B66DC", "color-brand-content": "#1B66DC"},
    "dark_css_variables": {"color-brand-primary": "#5694FF", "color-brand-content": "#5694FF"},
}


def setup(app):
    """Write the dashes between parameters and their texts, which Sphinx leaves to smartquotes."""
    app.connect("doctree-read", _write_dashes)


def _write_dashes(app, page):
    for text in list(page.findall(nodes.Text)):
        if text.startswith(" -- "):
            text.parent.replace(text, nodes.Text(text.replace(" -- ", " – ", 1)))
