"""The site: `uv run --group docs python -m sphinx -W docs site`. It needs no network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import django

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

from delayedq import __version__  # noqa: E402

project = "delayedq"
author = "the authors of delayedq"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "plain_pages"]
exclude_patterns = ["plain_pages.py"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
default_role = "code"
html_theme = "furo"
html_title = f"delayedq {version}"
html_theme_options = {"navigation_with_keys": True}
