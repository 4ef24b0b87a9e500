#!/usr/bin/env python3
"""Links between the repository's files: every relative link of a Markdown file, and every `docs/….md` that any other file names,
must lead to a file, and its #anchor to a heading. Plain Python; exits with 1 and names each that does not.

    python3 scripts/check_links.py
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w./-])docs/[\w./-]+\.(?:md|csv|sh|jpg|png)(?:#[\w-]+)?")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    headings = re.findall(r"^#+ +(.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def problem(target: Path, anchor: str) -> str | None:
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return "no such heading"
    return None


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in listed.stdout.split():
        path = ROOT / name
        try:
            text = path.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        links = {(link, ROOT) for link in NAMED.findall(text) if path != Path(__file__).resolve()}
        if path.suffix == ".md":
            prose = re.sub(r"```.*?```", "", text, flags=re.S)
            links |= {(link, path.parent) for link in LINK.findall(prose) if not re.match(r"[a-z]+:", link)}
        for link, folder in sorted(links):
            file, _, anchor = link.partition("#")
            if reason := problem((folder / file) if file else path, anchor):
                found.append(f"{name}: {link}: {reason}")
    print("\n".join(found) or "all links lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
