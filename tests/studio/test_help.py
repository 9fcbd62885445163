"""The documentation within the studio: every help text leads to a page of it and a heading that is there, behind the guard, without the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import OVERLAPS, VIEWS, go, see

pytest.importorskip("shiny", reason="the studio needs Shiny: pip install 'dplinked[studio]'")

from dplinked.studio.documentation import SECTIONS, TITLES, render_page, slug
from dplinked.studio.terms import TERMS, explain

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LAID_OUT = OVERLAPS.replace(".tab-pane.active", "main")
NUMBERS_IN_TWO = r"""() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode())
    for (const one of texts.currentNode.data.matchAll(/\d[\d.]*e-\d+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, one.index);
      range.setEnd(texts.currentNode, one.index + one[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(texts.currentNode.data);
    }
  return found;
}"""


def places_in(page: str) -> set[str]:
    """The headings of a page, by their ids."""
    return set(re.findall(r'<h\d id="([^"]+)"', page))


def check_place(place: str, said: str) -> None:
    name, _, heading = place.partition("#")
    page = render_page(name)
    assert page is not None, said
    assert not heading or heading in places_in(page), said


# --- without a browser -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TERMS)
def test_every_help_text_is_a_sentence_with_a_link_that_leads_somewhere(name: str) -> None:
    term, shown = TERMS[name], str(explain(name))
    assert term.sentence.endswith(".")
    assert len(term.sentence) < 260
    check_place(term.place, name)
    assert f'<a href="help/{term.place}" target="_blank" rel="noopener">' in shown
    assert TITLES[term.place.partition("#")[0]] in shown


@pytest.mark.parametrize("name", TITLES)
def test_links_of_a_page_lead_to_pages_that_are_served(name: str) -> None:
    """Nothing is loaded, nothing leads elsewhere, and what is not served is told in words."""
    page = render_page(name)
    assert page is not None
    assert len(places_in(page)) == len(re.findall(r"<h[2-6] ", page)), "two headings have one id"
    for link in re.findall(r'href="([^"]*)"', page):
        check_place(link if not link.startswith("#") else name + link if link != "#pages" else name, link)
    assert not re.search(r"<(script|link|img|iframe|object|form|base)\b|\ssrc=|url\(|@import", page)
    assert "default-src 'none'" in page
    assert not re.search(r"\]\(|^#|\|--|&lt;(!--|br)", page, re.MULTILINE), "Markdown was left over"
    assert page.count("<table>") == len(re.findall(r"^ *\|[-:| ]+\|$", (DOCS / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE))  # fmt: skip


def test_links_that_leave_the_pages_are_words() -> None:
    page = str(render_page("study-file"))
    assert "TOML (https://toml.io)" in page
    assert "A notebook is the short way." in str(render_page("index"))
    assert "(measured)" in str(render_page("studio"))


def test_headings_have_the_ids_that_the_site_gives_them() -> None:
    toc = pytest.importorskip("markdown.extensions.toc", reason="the site's builder is not installed")
    for file in DOCS.glob("*.md"):
        for heading in re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            plain = heading.replace("`", "").replace("*", "")
            assert slug(plain) == toc.slugify(plain, "-"), heading


def test_the_list_of_pages_is_the_sites() -> None:
    """Without the notebook and the Python reference, which the studio does not serve."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    pages = {name: title for title, name in re.findall(r"- (.+): ([\w-]+)\.md$", nav, re.MULTILINE)}
    del pages["first-release"]
    assert list(TITLES.items()) == list(pages.items())
    assert set(TITLES) == {file.stem for file in DOCS.glob("*.md")}
    assert list(SECTIONS) == re.findall(r"^  - (.+):$", nav, re.MULTILINE)


@pytest.mark.parametrize("name", ["", ".", "..", "../README", "theme/site", "Intervals", "intervals.md", "/etc/passwd", "intervals\0", "api/index"])  # fmt: skip
def test_nothing_but_the_listed_pages_is_rendered(name: str) -> None:
    assert render_page(name) is None


# --- in a browser ------------------------------------------------------------------------------------


def test_a_link_beside_a_term_opens_the_page_at_its_heading(start: Any, folder: Path) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    see(page, "The study is complete", ".state")
    asked = page.locator('[data-place="unit/rows"]')
    asked.locator("summary").click()
    with page.expect_popup() as opening:
        asked.get_by_role("link", name="Weight rows and study subgroups (in a new tab)").click()
    opened = opening.value
    heading = opened.locator("#several-rows-of-a-person")
    heading.wait_for()
    assert opened.url == f"{page.url}help/surveys#several-rows-of-a-person"
    assert heading.inner_text() == "Several rows of a person"
    assert 0 <= heading.bounding_box()["y"] < 100
    assert opened.evaluate("opener") is None

    # from page to page, and to all of them
    nav = opened.get_by_role("navigation", name="All pages")
    assert nav.get_by_role("link").count() > len(TITLES)
    nav.get_by_role("link", name="Choose bounds").click()
    opened.get_by_role("heading", name="Choose bounds", level=1).wait_for()
    opened.locator("article").get_by_role("link", name="when to declare it").click()
    opened.get_by_role("heading", name="Intervals", level=1).wait_for()
    assert opened.url == f"{page.url}help/intervals#symmetric-errors"
    with page.expect_popup() as opening:
        page.get_by_role("link", name="All of the documentation").click()
    opening.value.get_by_role("heading", name="dplinked", level=1).wait_for()
    page.locator(".tab-pane.active[data-value=study]").wait_for()
    assert page.locator(".elsewhere").count() == 0  # a page of help is no second window


def test_pages_are_behind_the_guard_and_others_are_not_there(start: Any, folder: Path) -> None:
    studio = start(folder / "study.toml")
    page = studio.open()
    page.locator(".navbar").wait_for()
    inside, other = page.url, studio.open()  # its address is used up
    assert other.goto(f"{inside}help/intervals").status == 403  # the folder without the cookie
    assert other.goto(f"{studio.origin}/help/intervals").status == 403
    ask = page.context.request
    assert ask.get(f"{studio.origin}/help/intervals").status == 403  # the cookie without the folder
    assert ask.post(f"{inside}help/intervals").status == 404
    answer = ask.get(f"{inside}help/intervals")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name in ("nothing", "", "intervals.md", "..%2fintervals", "..%2F..%2Fstudy.toml", "%2e%2e%2f%2e%2e%2fREADME.md", "%2fetc%2fpasswd", "index%00", "theme%2fsite.css"):  # fmt: skip
        answer = ask.get(f"{inside}help/{name}")
        assert answer.status == 404, name
        assert "consumption" not in answer.text(), name
    assert page.goto(f"{inside}help/nothing").status == 404
    assert page.locator("h1").inner_text() == "There is no such page"
    page.get_by_role("link", name="Glossary").click()
    page.get_by_role("heading", name="Glossary", level=1).wait_for()


def look_at(page: Any, axe: Any, name: str) -> None:
    """As `look` does with the studio's own pages, which have a switch for the dark; these follow the system's."""
    for width, scheme in VIEWS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        where = f"{name}, {scheme}, {width} wide"
        assert page.evaluate(LAID_OUT) == [], where
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark"), where
        found = axe.run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [], where


@pytest.mark.slow
def test_pages_are_readable(start: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    studio = start(folder / "study.toml")
    page = studio.open()
    page.locator(".navbar").wait_for()
    inside = page.url
    for name in (*TITLES, "nothing"):
        page.goto(f"{inside}help/{name}")
        if name in ("mathematics", "paper-line-by-line"):  # long ones: their layout alone
            for width, _ in VIEWS[:2]:
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate(LAID_OUT) == [], name
        else:
            look_at(page, axe, name)
    page.add_style_tag(content="h1 { margin-bottom: -3rem !important }")  # a planted fault is noticed
    assert page.evaluate(LAID_OUT) != []


@pytest.mark.slow
def test_no_line_is_broken_within_a_small_number(start: Any, folder: Path) -> None:
    page = start(folder / "study.toml").open(400)
    see(page, "The study is complete", ".state")
    go(page, "release")
    page.get_by_role("button", name="Release …").wait_for()
    go(page, "budget")
    see(page, "of the budget", "p")
    for step in ("release", "budget"):
        go(page, step)
        page.get_by_text("The same outside the studio").locator("visible=true").click()
        for width in range(320, 480, 8):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(NUMBERS_IN_TWO) == [], f"{step}, {width} wide"
        page.set_viewport_size({"width": 400, "height": 900})
    page.add_style_tag(content="td span { white-space: normal !important }")  # a planted fault is noticed
    seen = []
    for width in range(320, 480, 8):
        page.set_viewport_size({"width": width, "height": 900})
        seen += page.evaluate(NUMBERS_IN_TWO)
    assert seen != []
