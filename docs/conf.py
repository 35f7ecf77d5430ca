"""Sphinx configuration."""

import tiebreak

project = "tiebreak"
author = "The tiebreak developers"
copyright = "2026, the tiebreak developers"
release = version = tiebreak.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without a network
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_tables"]
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings have them, and shorter
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False  # `upper, lower : Oracle` stays one entry
napoleon_custom_sections = [("Attributes", "params_style")]  # attributes likewise
default_role = "code"  # `name` in a docstring is code

html_theme = "furo"
html_title = f"tiebreak {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
