"""The documentation site: Markdown anywhere in the repository is a page at the same path, so that links are GitHub's.

`make docs` builds it, without a network and with warnings as errors.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("docs/site", "examples/gpt", "python")]

import torchdion  # noqa: E402

project = "torchdion"
author = "the authors of torchdion"
release = torchdion.__version__
html_title = f"torchdion {release}"

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    # ours, in docs/site
    "command_lines",
    "comments",
    "mathml",
    "option_tables",
    "signatures",
]

root_doc = "docs/index"
include_patterns = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/gpu/README.md",
    "benchmarks/results/**.md",
    "csrc/README.md",
    "docs/**.md",
    "docs/**.rst",
    "examples/**.md",
]
exclude_patterns = [".git", ".venv", "build", "csrc/[a-z]*", "dist", "include", "python", "release", "runs", "tests"]

nitpicky = True  # a name that leads nowhere is an error
# names of other projects, whose documentation a build without a network cannot read
nitpick_ignore_regex = [
    ("py:.*", r"(torch|typing|collections|numpy)\b.*"),
    ("py:class", "optional"),
    ("cpp:identifier", r"(at|c10|c10d|comm|std|torch|torchdion|Betas|LossClosure|u?int64_t)(::.*)?"),
]

myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # reports begin where another document may take them in

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say what arguments are, in the signatures stand their types
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_admonition_for_examples = True

breathe_projects = {"torchdion": str(ROOT / "build" / "docs" / "doxygen" / "xml")}
breathe_default_project = "torchdion"
breathe_domain_by_extension = {"h": "cpp"}

html_theme = "furo"
html_static_path = ["static"]
html_extra_path = ["site/index.html"]  # at the root, where people open it
html_css_files = ["site.css"]
html_logo = "static/logo.svg"
html_favicon = "static/logo.svg"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5fa5", "color-brand-content": "#0b5fa5"},
    "dark_css_variables": {"color-brand-primary": "#7fc1ff", "color-brand-content": "#7fc1ff"},
}

math_number_all = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
