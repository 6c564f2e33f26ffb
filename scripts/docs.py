"""Turns docs/, README.md and CONTRIBUTING.md into static pages in site/, and checks their relative links.

A link to a file that is not there, or to a heading that a page does not have, fails the build: a reader
must never find out before we do. Links to other sites are not followed; the build needs no network.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent

# The order of the sections for a reader; a page that is in none of them comes last.
SECTIONS = ("", "start", "concepts", "guides", "cluster", "operating", "reference", "internals")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Ister</title>
<style>{style}</style>
</head>
<body>
<nav>{navigation}</nav>
<main>
{content}
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --line: #8885; --link: light-dark(#0b5cad, #7db7f0); }
body { margin: 0; display: flex; flex-wrap: wrap; font: 16px/1.55 system-ui, sans-serif; }
nav { flex: 0 0 13rem; padding: 1.5rem; box-sizing: border-box; border-right: 1px solid var(--line); }
nav a { display: block; padding: .15rem 0; } nav a[aria-current] { font-weight: 600; }
nav p { margin: 1rem 0 .2rem; opacity: .65; font-size: .85rem; }
main { flex: 1 1 30rem; max-width: 48rem; min-width: 0; padding: 1rem 2rem 4rem; }
a { color: var(--link); } img { max-width: 100%; }
pre { overflow-x: auto; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 6px; }
code { font: .9em ui-monospace, monospace; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
"""


@dataclass
class Page:
    """One Markdown file: where it comes from, where it goes, and what it links to."""

    source: PurePosixPath
    target: PurePosixPath
    title: str
    tokens: list[Token]
    anchors: set[str] = field(default_factory=set)

    def relative(self, other: PurePosixPath) -> str:
        return "../" * (len(self.target.parts) - 1) + str(other)


def load_pages(parser: MarkdownIt, root: Path) -> dict[PurePosixPath, Page]:
    files = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    pages: dict[PurePosixPath, Page] = {}
    for path in files:
        source = PurePosixPath(path.relative_to(root).as_posix())
        tokens = parser.parse(path.read_text(encoding="utf-8"))
        page = Page(source, target_of(source), source.stem, tokens)
        name_headings(page)
        pages[source] = page
    return pages


def target_of(source: PurePosixPath) -> PurePosixPath:
    if str(source) == "README.md":
        return PurePosixPath("index.html")
    if source.parts[0] != "docs":
        return PurePosixPath(source.name.lower()).with_suffix(".html")
    return source.relative_to("docs").with_suffix(".html")


def name_headings(page: Page) -> None:
    """Give each heading the anchor that its text stands for, as code hosts do."""
    for opening, content in zip(page.tokens, page.tokens[1:], strict=False):
        if opening.type != "heading_open":
            continue
        text = "".join(child.content for child in content.children or [])
        base = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        anchor, repeat = base, 0
        while anchor in page.anchors:
            repeat += 1
            anchor = f"{base}-{repeat}"
        page.anchors.add(anchor)
        opening.attrSet("id", anchor)
        if opening.tag == "h1":
            page.title = text


def links(page: Page) -> Iterator[tuple[Token, str, str]]:
    """Every link and picture that points into the repository: token, attribute, address."""
    for block in page.tokens:
        for token in block.children or []:
            name = {"link_open": "href", "image": "src"}.get(token.type)
            address = str(token.attrGet(name) or "") if name else ""
            if name and address and not urlsplit(address).scheme:
                yield token, name, address


class Site:
    """The pages, the files that they show, and what is wrong with their links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parser = MarkdownIt("commonmark", {"html": True}).enable("table")
        self.pages = load_pages(self.parser, root)
        self.assets: set[PurePosixPath] = set()
        self.problems: list[str] = []

    def resolve(self, page: Page, address: str) -> str:
        """The address as it is on the site; a dead one is noted and left as it stands."""
        parts = urlsplit(address)
        wanted = (self.root / page.source.parent / unquote(parts.path)).resolve() if parts.path else None
        if wanted is None:
            source = page.source
        elif not wanted.is_relative_to(self.root) or not wanted.exists():
            self.problems.append(f"{page.source}: {address} is not there")
            return address
        else:
            source = PurePosixPath(wanted.relative_to(self.root).as_posix())
        other = self.pages.get(source)
        if other is None:
            return self.resolve_file(page, source, address)
        if parts.fragment and parts.fragment not in other.anchors:
            self.problems.append(f"{page.source}: {address} names a heading that {source} does not have")
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return (page.relative(other.target) if parts.path else "") + fragment

    def resolve_file(self, page: Page, source: PurePosixPath, address: str) -> str:
        if (self.root / source).is_dir():
            self.problems.append(f"{page.source}: {address} is a directory; link to a file")
            return address
        self.assets.add(source)
        return page.relative(PurePosixPath("files") / source)

    def render(self, page: Page) -> str:
        for token, name, address in links(page):
            token.attrSet(name, self.resolve(page, address))
        content = self.parser.renderer.render(page.tokens, self.parser.options, {})
        return PAGE.format(
            title=html.escape(page.title), style=STYLE, navigation=self.navigation(page), content=content
        )

    def navigation(self, current: Page) -> str:
        lines: list[str] = []
        section = ""
        for page in sorted(self.pages.values(), key=reading_order):
            folder = str(page.target.parent) if page.target.parent.parts else ""
            if folder != section:
                section = folder
                lines.append(f"<p>{html.escape(folder)}</p>" if folder else "<p></p>")
            here = ' aria-current="page"' if page is current else ""
            address = current.relative(page.target)
            lines.append(f'<a href="{html.escape(address)}"{here}>{html.escape(page.title)}</a>')
        return "\n".join(lines)

    def write(self, target: Path) -> None:
        rendered = {page.target: self.render(page) for page in self.pages.values()}
        if self.problems:
            return
        shutil.rmtree(target, ignore_errors=True)
        for name, text in rendered.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for asset in self.assets:
            path = target / "files" / asset
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / asset, path)


def reading_order(page: Page) -> tuple[int, str]:
    parts = page.target.with_suffix("").parts
    first = "" if parts == ("index",) else parts[0]
    return (SECTIONS.index(first) if first in SECTIONS else len(SECTIONS), str(page.target))


def main() -> int:
    arguments = argparse.ArgumentParser(description="Build docs/ into static pages.")
    arguments.add_argument("--root", type=Path, default=ROOT, help="the repository to read")
    arguments.add_argument("--site", type=Path, help="where to write (default: site/ in the repository)")
    given = arguments.parse_args()
    root: Path = given.root.resolve()
    site = Site(root)
    target: Path = given.site or root / "site"
    site.write(target)
    for problem in site.problems:
        print(f"docs: {problem}", file=sys.stderr)
    if site.problems:
        print(f"docs: {len(site.problems)} dead links; nothing was written", file=sys.stderr)
        return 1
    print(f"docs: {len(site.pages)} pages in {target}; start with {target / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
