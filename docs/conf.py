"""Sphinx configuration."""

import sys
from pathlib import Path

import tiebreak

sys.path.insert(
    0, str(Path(__file__).parent.parent)
)  # for the gallery, which is not installed

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
    "sphinx_gallery.gen_gallery",  # a page for each file of examples/
]
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": r"/(checkpoint|minimum_norm|own_rule)\.py$",  # these run while the pages are built: seconds
    "image_scrapers": (),
    "min_reported_time": 60,
    "show_signature": False,
    "write_computation_times": False,
}
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
