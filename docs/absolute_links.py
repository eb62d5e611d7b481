"""Makes the links and pictures of the README absolute: the package index shows it without the files beside it.

    python docs/absolute_links.py https://github.com/owner/name v0.1.0

`.github/workflows/publish.yml` does this before it builds. It changes README.md; do not commit that.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repository", help="its address, without a slash at the end")
    parser.add_argument("tag", help="the version whose files are meant")
    given = parser.parse_args()
    README.write_text(absolute(README.read_text(), given.repository, given.tag))


def absolute(text: str, repository: str, tag: str) -> str:
    def link(found: re.Match[str]) -> str:
        is_picture, words, path = found.groups()
        return f"{is_picture}[{words}]({repository}/{'raw' if is_picture else 'blob'}/{tag}/{path})"

    return LINK.sub(link, text)


if __name__ == "__main__":
    main()
