"""Accessibility of the page: any width, light and dark, keyboard, screen readers; and as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertworks import explorer
from bertworks.explorer.page import page as page_of
from tests.explorer.browser import axe
from tests.explorer.test_browser import TEXT, TEXT_IN_LINK, VIEWS, cells

pytestmark = pytest.mark.long

LACKING = "tag?model=classifier"


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_every_view_fits_and_axe_finds_no_serious_fault(visit, size: str, scheme: str) -> None:
    script = axe()
    tab = visit(size, color_scheme=scheme)
    tab.open().evaluate(script)
    faults: list[Any] = []
    for link in (*(f"{view}?{values}" for view, values in VIEWS.items()), LACKING):
        page = tab.show(f"#/{link}")
        width = page.evaluate("document.documentElement.scrollWidth")
        faults += [(link, "wider than the screen", width)] if width > tab.width else []
        faults += [(link, "error", one) for one in page.locator(".status.error").all_inner_texts()]
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        report = page.evaluate("axe.run({resultTypes: ['violations']})")
        faults += [
            (link, one["id"], [node["target"] for node in one["nodes"]])
            for one in report["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert not faults, "\n".join(map(str, faults))


def test_the_keyboard_reaches_everything_and_leaves_it(visit) -> None:
    tab = visit()
    page = tab.open(f"#/attention?text={TEXT_IN_LINK}&words=3")
    focused_names: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "(one => [`${one.tagName} ${one.getAttribute('aria-label') ?? one.textContent}`,"
            " getComputedStyle(one).outlineStyle])(document.activeElement)"
        )
        if name.startswith("BODY"):
            break
        assert outline != "none", f"{name} does not show that it has the keyboard"
        focused_names.append(name)
    else:
        pytest.fail("the keyboard does not come to the page's end")
    assert focused_names[0] == "A Skip to the view"
    text = "\n".join(focused_names)
    for wanted in ("Attention", "TEXTAREA", "Layer 1, head 1", "Lines", "Test it", "CSV"):
        assert wanted in text
    assert sum(one.startswith("BUTTON Layer") for one in focused_names) == 1, (
        "one stop for all heads"
    )


def test_a_word_is_hidden_and_a_head_chosen_by_keyboard_alone(visit) -> None:
    tab = visit()
    page = tab.open(f"#/attention?text={TEXT_IN_LINK}")
    page.get_by_role("button", name="the", exact=True).first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url("**words=3**")
    tab.settle()
    assert page.evaluate("document.activeElement.textContent") == "open", "it is still there"
    page.get_by_role("button", name="Layer 1, head 1", exact=True).focus()
    for key in ("ArrowDown", "ArrowRight", " "):
        page.keyboard.press(key)
    page.get_by_role("heading", name="Layer 2, head 2", exact=True).wait_for()
    page.get_by_role("link", name="Skip to the view").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.get_by_role("heading", name="Attention", exact=True).is_visible()


def test_the_colours_follow_the_system_until_one_chooses(visit) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    tab = visit(color_scheme="dark")
    page = tab.open("#/pieces")
    dark = page.evaluate(paper)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(paper) != dark
    page.get_by_role("button", name="Colours").click()
    page.get_by_role("button", name="Colours: dark").wait_for()
    page.wait_for_function("document.activeElement.id === 'theme'")  # the focus stays at it
    assert page.evaluate(paper) == dark
    page.reload()
    tab.settle()
    assert page.evaluate(paper) == dark, "it is remembered"


def test_views_are_in_a_menu_on_a_phone(visit) -> None:
    tab = visit("phone")
    page = tab.open(f"#/fill?text={TEXT_IN_LINK}&words=1")
    link = page.get_by_role("link", name="Next word, both ways")
    assert not link.is_visible()
    page.get_by_text("View: Fill in the blank").click()
    link.click()
    page.get_by_role("heading", name="Next word, both ways").wait_for()
    tab.settle()
    assert page.get_by_label("Text", exact=True).input_value() == TEXT, "the text comes along"
    page.go_back()
    page.get_by_role("heading", name="The blank · was “door”").wait_for()


def test_a_file_shows_its_text_without_a_server(visit, get_model) -> None:
    offline = visit(data=explorer.explain(get_model("pretrained"), TEXT))
    page = offline.open("#/fill")
    page.get_by_role("button", name="door", exact=True).click()
    page.get_by_role("heading", name="The blank · was “door”").wait_for()
    (first, *_) = get_model("pretrained").fill_mask("the [MASK] was open in london.")[0]
    shown = cells(page.locator(".card table").first)[0][0]
    assert shown.removesuffix(" (the original)") == first["token"].replace("##", "·")
    for view in ("guess", "next", "pieces", "steps", "attention", "occlusion"):
        page = offline.open(f"#/{view}")
        assert page.locator(".status.error").count() == 0, view
    assert page.locator("textarea").count() == 0, "its text is what it is"
    page = offline.open("#/attention")
    assert page.get_by_role("group", name="Heads; press").get_by_role("button").count() == 4
    page = offline.open("#/search")
    assert "needs a server" in page.locator(".notice").inner_text()


def test_a_file_of_a_classifier_switches_heads_off(visit, get_model) -> None:
    data = explorer.explain(get_model("classifier"), TEXT)
    page = visit(data=data).open("#/attention?layer=1&head=0")
    page.get_by_role("button", name="Switch off: layer 2, head 1").click()
    message = page.locator(".card p", has_text="the label “")
    message.wait_for()
    share = data["prediction"]["probability"] + data["heads"]["effects"][1][0]
    assert float(message.inner_text().split(": ")[1].split(" %")[0]) == pytest.approx(
        100 * share, abs=0.6
    )


def test_a_file_without_javascript_is_tables(browser, get_model, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_of(explorer.explain(get_model("pretrained"), TEXT)), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "Pieces" in page.locator("main").inner_text()
    section = page.locator("section", has_text="Each word masked")
    rows = section.locator("table tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == [*TEXT.removesuffix(".").split(), "."]
    context.close()
