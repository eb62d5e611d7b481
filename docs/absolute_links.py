"""Makes the links and pictures of the README absolute, and adds the URLs of the project, for the package index.

    python docs/absolute_links.py https://github.com/owner/name v0.1.0

The index shows the README without the files beside it. `.github/workflows/publish.yml` does this before it builds, with
the repository that it runs in. It changes README.md and pyproject.toml; do not commit that.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README, PROJECT = ROOT / "README.md", ROOT / "pyproject.toml"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
#: The table before which that of the URLs comes.
BEFORE = "\n[project.entry-points."
URLS = """
[project.urls]
Source = "{repository}"
Documentation = "{repository}/blob/{tag}/docs/index.md"
Changelog = "{repository}/blob/{tag}/CHANGELOG.md"
Issues = "{repository}/issues"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repository", help="its address, without a slash at the end")
    parser.add_argument("tag", help="the version whose files are meant")
    given = parser.parse_args()
    README.write_text(absolute(README.read_text(), given.repository, given.tag))
    PROJECT.write_text(with_urls(PROJECT.read_text(), given.repository, given.tag))


def absolute(text: str, repository: str, tag: str) -> str:
    def link(found: re.Match[str]) -> str:
        is_picture, words, path = found.groups()
        return f"{is_picture}[{words}]({repository}/{'raw' if is_picture else 'blob'}/{tag}/{path})"

    return LINK.sub(link, text)


def with_urls(text: str, repository: str, tag: str) -> str:
    """The project file with a table of URLs. Raises ValueError if there is no place for it."""
    before, after = text.split(BEFORE)
    return before + URLS.format(repository=repository, tag=tag) + BEFORE + after


if __name__ == "__main__":
    main()
