"""An HTML report as a test looks at it: whole, from one file, and with nothing in it that a recording put there."""
from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["Page", "page_of"]

VOID = {"meta", "br"}
OURS = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "table", "caption", "thead",
        "tbody", "tr", "th", "td", "figure", "figcaption", "strong", "span", "details", "summary", "svg", "desc",
        "line", "text", "polyline", "circle"}
REFERS = ("src", "href", "action", "style", "srcset")


class Page(HTMLParser):
    """tags: all of them, in order. text: what a reader sees. verdict: its tone and its sentence. before: the tags that
    stand before it in the body. tables: by caption, the cells of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.identities: list[str] = []
        self.outside: list[str] = []
        self.text = ""
        self.verdict = ("", "")
        self.before: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        words = dict(attrs).get("class") or ""
        if tag == "p" and words.startswith("verdict "):
            self.verdict, self.before = (words.removeprefix("verdict "), ""), self.tags[self.tags.index("body") + 1:-1]
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")
        elif tag == "caption":
            self._rows = []
            self.tables[""] = self._rows
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in REFERS or name.startswith("on")]
        self.identities += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if "caption" in self.open:
            self.tables[data] = self.tables.pop("")
        elif self.open[-1:] and {"th", "td"} & set(self.open):
            self._rows[-1][-1] += data
        elif self.open and self.open[-1] == "p" and self.verdict[0] and not self.verdict[1]:
            self.verdict = (self.verdict[0], data)


def page_of(text: str) -> Page:
    """Checks what holds of every report, and gives the page."""
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == [] and page.outside == [] and set(page.tags) <= OURS, set(page.tags) - OURS
    assert "@import" not in text and "url(" not in text and "prefers-color-scheme: dark" in text
    assert page.tags.count("svg") == page.tags.count("desc") and len(set(page.identities)) == len(page.identities)
    assert page.verdict[1] and page.before == ["main", "h1"], "the verdict stands on top"
    assert all(c.isprintable() or c == "\n" for c in text), "what is not printable is written out"
    return page
