"""Checks a site of `docs/build`: every link leads to a file and a heading, nothing is loaded from elsewhere, and the search finds things.

usage: docs/check_site.py FOLDER
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """What a page has: the names in it, the links of it, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.names.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in ("script", "img", "iframe") and attributes.get("src"):
            self.loads.append(attributes["src"])
        if tag == "link" and attributes.get("rel") == "stylesheet":
            self.loads.append(attributes["href"])


site = pathlib.Path(sys.argv[1]).resolve()
pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
wrong = []
for path, page in pages.items():
    if path.name in ("print.html", "404.html", "toc.html"):
        continue
    for link in page.links + page.loads:
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            if link in page.loads:
                wrong.append(f"{path.relative_to(site)} loads {link}")
            continue
        target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
        if not target.exists():
            wrong.append(f"{path.relative_to(site)}: {link} is not there")
        elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].names:
            wrong.append(f"{path.relative_to(site)}: {link} has no such heading")

index = next(iter(site.glob("searchindex*.js")), None)
if index is None:
    wrong.append("there is no search index")
else:
    words = index.read_text()
    wrong += [f"the search does not know {word!r}" for word in ("checkpoint", "seq_id", "unsloth", "tinkrs_queue_length") if word not in words.lower()]
summary = re.findall(r"\]\(([^)]+)\.md\)", (pathlib.Path(__file__).parent / "SUMMARY.md").read_text())
for name in summary:
    name = re.sub("README$", "index", name)
    if not (site / f"{name}.html").exists():
        wrong.append(f"the site has no {name}.html")
print("\n".join(wrong) or f"{len(pages)} pages, all links lead somewhere")
sys.exit(1 if wrong else 0)
