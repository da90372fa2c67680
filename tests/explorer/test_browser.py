"""Each view as a person uses it, in a browser; it shows the model's numbers."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bertworks import Client, Index, explorer, load
from bertworks.cli import app
from bertworks.serving.security import Keys
from bertworks.training.checkpoint import save_weights
from tests.explorer.browser import Visit

pytestmark = pytest.mark.long

FAMILIES = Path(__file__).parents[1] / "saved_models"

TEXT = "the door was open in london."
TEXT_IN_LINK = TEXT.replace(" ", "+")


def cells(table: Any) -> list[list[str]]:
    """The body of a table."""
    texts: list[list[str]] = table.evaluate(
        "one => [...one.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return texts


def numbers_of(figure: Any) -> list[list[float]]:
    """The numbers of a chart, which it also shows as a table."""
    figure.get_by_text("As a table").click()
    return [[float(one) for one in row[1:]] for row in cells(figure.locator("table"))]


def saved_as(page: Any, name: str, part: Any) -> bytes:
    """What a button of that name saves."""
    with page.expect_download() as waiting:
        part.get_by_role("button", name=name, exact=True).click()
    return Path(waiting.value.path()).read_bytes()


def percents(text: str) -> float:
    return float(re.sub(r"[^\d.]", "", text)) / 100


def test_fill_shows_the_predictions_of_a_blank(visit, get_model) -> None:
    tab = visit()
    page = tab.open(f"#/fill?text={TEXT_IN_LINK}")
    page.get_by_role("button", name="open", exact=True).click()
    page.get_by_role("heading", name="The blank · was “open”").wait_for()
    expected = get_model("pretrained").fill_mask("the door was [MASK] in london.", top_k=10)[0]
    best_rows = cells(page.locator(".card table").first)[:10]
    assert [row[0].removesuffix(" (the original)") for row in best_rows] == [
        one["token"].replace("##", "·") for one in expected
    ]
    assert [percents(row[2]) for row in best_rows] == pytest.approx(
        [one["probability"] for one in expected], abs=0.006
    )
    page.get_by_label("Candidates").fill("river, deep")
    page.get_by_role("heading", name="Candidates").first.wait_for()  # typing has ended
    page.get_by_role("button", name="door", exact=True).click()
    page.get_by_label("Compare with").select_option("other")
    page.get_by_role("heading", name="Blank 2").first.wait_for()
    tab.settle()
    page.get_by_role("heading", name="other", exact=True).wait_for()
    assert page.get_by_role("heading", name="Candidates").count() == 4
    rows = list(
        csv.reader(io.StringIO(saved_as(page, "CSV", page.locator(".card").first).decode()))
    )
    assert rows[0] == ["piece", "probability"]
    assert [row[0] for row in rows[-2:]] == ["river", "deep"]
    link = page.url
    text = page.locator("main").inner_text()
    other_visit = visit()
    other_page = other_visit.open(link.removeprefix(other_visit.url))
    other_page.get_by_role("heading", name="Blank 2").first.wait_for()
    other_visit.settle()
    assert other_page.locator("main").inner_text() == text


@pytest.mark.parametrize(
    ("name", "text", "number", "note"),
    [  # the first model's words: [MASK] it ' s a door , was open .
        ("roberta", "<mask> it's a door, was open.", 7, None),
        ("albert", "[MASK] it's a door, was open.", 5, "it masks “open.”"),
    ],
)
def test_another_models_words_are_those_of_the_same_characters(
    visit, start, directories, name: str, text: str, number: int, note: str | None
) -> None:
    """Their numbers differ: it predicts another word."""
    other = load(FAMILIES / f"{name}-pretraining", device="cpu")
    expected = explorer.fill(other, text, words=[number])
    assert expected["pieces"]["words"][number]["text"].startswith("open")
    models = {"own": directories["pretrained"], name: str(FAMILIES / f"{name}-pretraining")}
    with start(models) as site:
        page = visit(server=site).open(
            f"#/fill?text=[MASK]+it's+a+door,+was+open.&words=8&compare={name}"
        )
        second = page.locator("main .cards > div").filter(
            has=page.get_by_role("heading", name=name)
        )
        second.get_by_role("heading").first.wait_for()
        shown = [cells(table) for table in second.locator(".card table").all()]
        assert len(shown) == len(expected["blanks"])
        for table, blank in zip(shown, expected["blanks"], strict=True):
            assert [percents(row[2]) for row in table[:10]] == pytest.approx(
                [one["probability"] for one in blank["both"]["top"]], abs=0.006
            )
        assert second.get_by_text("Its words have other borders").all_inner_texts() == (
            [] if note is None else [f"Its words have other borders: {note}."]
        )


def test_guess_shows_the_layers_of_a_blank(visit, get_model) -> None:
    tab = visit()
    page = tab.open(f"#/guess?text={TEXT_IN_LINK}")
    page.get_by_role("button", name="open", exact=True).click()
    tab.settle()
    assert page.locator(".bars").count() == 0, "nothing is shown before one has guessed"
    page.get_by_label("Your guess").fill("deep")
    page.get_by_label("Your guess").press("Enter")
    page.get_by_text("It gives your “deep”").wait_for()
    blank = explorer.fill(get_model("pretrained"), TEXT, words=[3], candidates=["deep"])["blanks"][
        0
    ]
    layers = cells(page.get_by_role("table", name="Most probable pieces"))
    assert [row[2] for row in layers] == [f"{one['entropy']:.1f}" for one in blank["layers"]]
    page.get_by_text("As a table").click()
    numbers = cells(page.get_by_role("table", name="Probability by layer"))
    assert [float(row[2]) for row in numbers] == pytest.approx(
        [one["candidates"][0]["probability"] for one in blank["layers"]], rel=1e-3
    )


def test_guess_follows_the_checkpoint_of_a_run(visit, start, get_model, tmp_path: Path) -> None:
    own, run = get_model("pretrained"), tmp_path / "run"
    own.save(run / "model")
    for step in (20, 1000):
        torch.manual_seed(step)
        network = own.task.network(own.encoder.config)
        save_weights(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors", network)
    model = load(run, device="cpu")
    asked = {"words": [3], "candidates": ["deep"]}
    answers = [explorer.fill(model, TEXT, **asked, checkpoint=step) for step in (20, 1000, None)]
    expected = [answer["blanks"][0]["both"] for answer in answers]
    assert len({one["top"][0]["probability"] for one in expected}) == 3

    def likeliest(page) -> list[tuple[str, float]]:
        rows = cells(page.get_by_role("table", name="The blank", exact=True))
        return [(row[0].removesuffix(" (the original)"), percents(row[2])) for row in rows[:10]]

    def rows_of(answer) -> list[Any]:
        return [
            (one["token"].replace("##", "·"), pytest.approx(one["probability"], abs=0.006))
            for one in answer["top"]
        ]

    with start({"run": str(run)}) as site:
        tab = visit(server=site)
        page = tab.open(f"#/guess?text={TEXT_IN_LINK}&words=3&guess=deep&shown=1")
        slider = page.get_by_role("slider", name="Checkpoint")
        assert likeliest(page) == rows_of(expected[2]), "the model itself, first"
        for key, says, answer in (
            ("Home", "step 20", expected[0]),
            ("ArrowRight", "step 1,000", expected[1]),
        ):
            slider.press(key)
            page.get_by_text(says).wait_for()
            tab.settle()
            assert likeliest(page) == rows_of(answer)
        page.get_by_role("button", name="Compare all checkpoints").click()
        figure = page.get_by_role("figure", name="Probability by checkpoint")
        figure.get_by_text("As a table").click()
        rows = cells(figure.locator("table"))
        assert [row[0] for row in rows] == ["20", "1000"]
        for number, (row, answer) in enumerate(zip(rows, expected[:2], strict=True)):
            shown = [float(one) for one in row[1:]]
            probabilities = [answer["original"], answer["candidates"][0], answer["top"][0]]
            assert shown == pytest.approx(
                [one["probability"] for one in probabilities], rel=1e-3
            ), number
        other_visit = visit(server=site)
        other_page = other_visit.open(page.url.removeprefix(other_visit.url))
        other_page.get_by_text("step 1,000").wait_for()
        other_visit.settle()
        assert likeliest(other_page) == rows_of(expected[1])


def test_next_word_is_predicted_from_left_and_both_sides(visit, get_model) -> None:
    page = visit().open(f"#/next?text={TEXT_IN_LINK}&words=1")
    blank = explorer.fill(get_model("pretrained"), TEXT, words=[1], layers=False)["blanks"][0]
    for name, side in (("Left side only", "left"), ("Both sides", "both")):
        first = cells(page.get_by_role("table", name=name))[0]
        assert percents(first[2]) == pytest.approx(blank[side]["top"][0]["probability"], abs=0.006)
    page = visit().open(f"#/next?text={TEXT_IN_LINK}&model=causal")
    assert page.get_by_text("This model is causal").is_visible()
    assert page.get_by_role("heading", name="Both sides").count() == 0


def test_only_models_of_pairs_have_a_field_for_a_second_text(visit) -> None:
    """Nor do they read one that a link has, for another model."""
    for name, count in (("classifier", 0), ("pretrained", 1)):
        for view in ("occlusion", "steps"):
            page = visit().open(f"#/{view}?text={TEXT_IN_LINK}&pair=a+river&model={name}")
            assert page.get_by_label("Second text").count() == count, (name, view)
    page = visit().open(f"#/classify?text={TEXT_IN_LINK}&pair=a+river&model=classifier")
    assert page.get_by_label("Second text").count() == 0
    assert page.locator(".card").count()


def test_pieces_are_those_of_the_tokenizer(visit, get_model) -> None:
    tab = visit()
    page = tab.open("#/pieces?text=the+unopened+door&pair=日本")
    tokens = get_model("pretrained").tokenizer.encode("the unopened door", "日本")
    shown = cells(page.get_by_role("table", name="Pieces"))
    assert [int(row[1]) for row in shown] == tokens.input_ids.tolist()
    assert [int(row[3]) for row in shown] == tokens.token_type_ids.tolist()
    page.get_by_label("Text", exact=True).fill("<b>x</b>")
    page.get_by_role("cell", name="0–1", exact=True).wait_for()
    tab.settle()
    assert page.locator("main b").count() == 0, "a text is text"


def test_steps_show_states_and_the_answer(visit, get_model) -> None:
    page = visit().open(f"#/steps?text={TEXT_IN_LINK}&words=3")
    steps = explorer.steps(get_model("pretrained"), TEXT, words=[3])
    count = len(steps["pieces"]["tokens"])
    assert page.get_by_text(f"[{count}, 16]").count() == 2
    position = [one["token"] for one in steps["pieces"]["tokens"]].index("london")
    page.get_by_role("group", name="Pieces").get_by_role("button", name="london").click()
    rows = cells(page.get_by_role("table", name="The states of “london”"))
    shown = [float(number.replace("−", "-")) for number in rows[-1][1:9]]
    assert shown == pytest.approx(steps["states"][-1]["rows"][position], abs=0.006)
    assert page.get_by_role("heading", name="The answer: the blank").is_visible()


def test_attention_shows_weights_and_heads(visit, get_model) -> None:
    tab = visit()
    page = tab.open(f"#/attention?text={TEXT_IN_LINK}&words=3")
    answer = explorer.attention(get_model("pretrained"), TEXT, words=[3])
    size = len(answer["pieces"]["tokens"])
    heads = page.get_by_role("group", name="Heads; press").get_by_role("button")
    assert heads.count() == 4
    heads.nth(3).click()
    page.get_by_role("heading", name="Layer 2, head 2", exact=True).wait_for()
    page.get_by_role("group", name="Attending words").get_by_role("button").nth(1).hover()
    page.get_by_text("“the” attends to").wait_for()
    page.get_by_role("button", name="Matrix").click()
    matrix = page.get_by_role("figure", name="Layer 2, head 2: matrix")
    values = numbers_of(matrix)
    data = np.frombuffer(__import__("base64").b64decode(answer["weights"]["base64"]), np.uint8)
    weights = data.reshape(2, 2, size, size) / answer["weights"]["scale"]
    np.testing.assert_allclose(values, weights[1, 1], atol=1e-4)

    page.get_by_label("Merge pieces").check()
    page.get_by_label("Hide special").check()
    words = len(answer["pieces"]["words"])
    assert len(numbers_of(matrix)) == words
    page.get_by_label("From").select_option("1")
    page.get_by_label("To", exact=True).select_option("2")
    page.get_by_role("figure", name="From “door” to “was” in every head").wait_for()

    page.get_by_role("button", name="Switch off: layer 2, head 2").click()
    page.get_by_role("heading", name="Without layer 2, head 2").wait_for()
    tab.settle()
    options = {"text": TEXT, "words": [3], "ablated_heads": [(1, 1)]}
    before = explorer.predict(get_model("pretrained"), TEXT, words=[3])["prediction"]
    token = before["target"]["token"]
    prediction_without_head = explorer.predict(
        get_model("pretrained"), **options, target={"kind": "blank", "blank": 0, "token": token}
    )["prediction"]
    said = page.locator(".card p", has_text="the blank “").inner_text()
    assert percents(said.split(": ")[1].split(" %")[0]) == pytest.approx(
        prediction_without_head["probability"], abs=0.006
    )
    page.get_by_role("button", name="Rank all heads").click()
    table = page.get_by_role("table", name="Heads by their effect")
    table.wait_for()
    ranked = explorer.heads(get_model("pretrained"), TEXT, words=[3])["ranked"]
    assert [row[0] for row in cells(table)] == [
        f"Layer {one['layer'] + 1}, head {one['head'] + 1}" for one in ranked
    ]


@pytest.mark.parametrize("claim", ["previous", "links"])
def test_claim_about_heads_is_measured(visit, get_model, claim: str) -> None:
    page = visit().open(f"#/attention?claim={claim}")
    sentences = ["the door was open | 2-1, 4-3", "the river was deep | 2-1"]
    page.get_by_label("Sentences, one per line").fill("\n".join(sentences))
    page.get_by_role("button", name="Test it").click()
    page.get_by_text("Tested on").wait_for()
    more = {"links": [[(1, 0), (3, 2)], [(1, 0)]]} if claim == "links" else {}
    texts = [one.partition(" | ")[0] for one in sentences]
    result = explorer.claim(get_model("pretrained"), texts, claim, **more)
    assert f"Tested on {result['num_words']} words" in page.locator("main").inner_text()
    best = cells(page.get_by_role("table", name="Best heads"))
    assert percents(best[0][1]) == pytest.approx(result["ranked"][0]["score"], abs=0.006)


def test_minimal_pair_shows_changes_of_vectors(visit, get_model) -> None:
    page = visit().open("#/pair?text=the+[MASK]+was+open&other=the+[MASK]+was+deep")
    result = explorer.minimal_pair(
        get_model("pretrained"), "the [MASK] was open", "the [MASK] was deep"
    )
    figure = page.get_by_role("figure", name="Change of each vector")
    np.testing.assert_allclose(numbers_of(figure), 1 - np.array(result["vectors"]), atol=1e-4)
    assert page.get_by_text("5 pieces are the same, 1 differs.").is_visible()
    page.get_by_label("Second text").fill("the [MASK] was open in london")
    page.get_by_text("6 pieces are the same, 2 are added.").wait_for()
    page.get_by_label("First text").fill("a [MASK] was open in london.")
    page.get_by_text("7 pieces are the same, 1 differs, 1 is missing.").wait_for()


def test_a_long_text_of_a_minimal_pair_is_seen_whole_on_a_phone(visit) -> None:
    page = visit("phone").open(f"#/pair?text={TEXT_IN_LINK}&other={'+'.join([TEXT_IN_LINK] * 4)}")
    for name in ("First text", "Second text"):
        box = page.get_by_label(name)
        assert box.evaluate("one => one.scrollWidth <= one.clientWidth"), name
        assert box.evaluate("one => one.scrollHeight <= one.clientHeight"), name


def test_occlusion_shows_the_effect_of_each_word(visit, get_model) -> None:
    tab = visit()
    page = tab.open("#/occlusion?model=classifier&text=the+door+was+open")
    table = page.get_by_role("table", name="Effect of each word")
    rows = cells(table)
    result = explorer.occlusion(get_model("classifier"), "the door was open")
    assert {row[0] for row in rows} == {"the", "door", "was", "open"}
    texts = [one["text"] for one in result["pieces"]["words"]]
    for one in result["words"]:
        (row,) = (row for row in rows if row[0] == texts[one["word"]])
        assert percents(row[1]) == pytest.approx(one["probability"], abs=0.006)
    label = result["prediction"]["distribution"][1]["name"]
    page.get_by_label("Prediction to explain").select_option(label)
    page.get_by_text(f"the label “{label}”").wait_for()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([-0.2, 0.1, -0.3, 0], "It depends most on “was”."),
        ([-0.2, 0.4, -0.3, 0], "It depends most on “was”. Hiding “door” raises it: +40.0"),
        ([0.1, 0.4, 0, 0.2], "Hiding a word never lowers it. Hiding “door” raises it: +40.0"),
        ([0, 0, 0, 0], "Hiding a word never lowers it."),
    ],
)
def test_prediction_depends_on_the_word_that_lowers_it_most(visit, changes, says: str) -> None:
    def change_effects(route: Any) -> None:
        answer = route.fetch()
        content = answer.json()
        for one, value in zip(content["words"], changes, strict=True):
            one["change"] = value
        route.fulfill(response=answer, json=content)

    tab = visit()
    tab.page.route("**/explore/occlusion", change_effects)
    page = tab.open("#/occlusion?model=classifier&text=the+door+was+open")
    said = page.locator(".status").inner_text().partition("%. ")[2]
    assert said.removesuffix(" points.") == says


def test_heads_that_raise_a_prediction_have_the_colour_of_words_that_do(visit, get_model) -> None:
    tab = visit(color_scheme="light")
    page = tab.open(f"#/attention?text={TEXT_IN_LINK}&words=3")
    page.get_by_role("button", name="Rank all heads").click()
    figure = page.get_by_role("figure", name="Effect of switching each head off")
    figure.locator("image").wait_for()
    pixels = figure.locator("image").evaluate(
        """async one => {
            const image = new Image();
            image.src = one.getAttribute("href");
            await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
            canvas.drawImage(image, 0, 0);
            return [...canvas.getImageData(0, 0, image.width, image.height).data];
        }"""
    )
    effects = np.array(explorer.heads(get_model("pretrained"), TEXT, words=[3])["effects"])
    red, _, blue, alpha = np.array(pixels).reshape(*effects.shape, 4).astype(int).transpose(2, 0, 1)
    seen = alpha > 20
    assert seen.any()
    assert (((blue > red) == (effects < 0)) | ~seen).all(), "without them it falls: blue"
    assert "Blue heads raise it, orange heads lower it" in figure.inner_text()


def test_word_in_context_shows_similarities(visit, get_model) -> None:
    tab = visit()
    page = tab.open()
    page.get_by_role("link", name="A word in context").click()
    page.get_by_label("Word", exact=True).fill("door")
    page.get_by_label("Sentences with this word").fill("the door was open\na deep door\nthe door")
    page.get_by_text("“door” occurs 3 times.").wait_for()
    result = explorer.contexts(
        get_model("pretrained"), "door", ["the door was open", "a deep door", "the door"]
    )
    page.get_by_role("slider", name="After layer").press("ArrowLeft")
    figure = page.get_by_role("figure", name="After layer 1")
    np.testing.assert_allclose(numbers_of(figure), result["similarity"][1], atol=1e-3)
    picture = ET.fromstring(saved_as(page, "SVG", page.get_by_role("figure", name="A map")))
    assert len(picture.findall(".//{*}circle")) == 3
    assert "var(" not in ET.tostring(picture, "unicode"), "the colours are its own"
    assert saved_as(page, "PNG", figure)[:8] == b"\x89PNG\r\n\x1a\n"


def test_next_sentence_lists_edits_with_probabilities(visit, get_model) -> None:
    page = visit().open("#/follow?text=the+door+was+open&pair=a+river")
    model = get_model("pretrained")
    page.get_by_text("It follows with probability").wait_for()
    page.get_by_label("Second sentence").fill("a deep river")
    page.get_by_role("heading", name="As you edit").wait_for()
    rows = cells(page.get_by_role("table", name="Edits, latest first"))
    expected = [
        model.next_sentence("the door was open", one) for one in ("a deep river", "a river")
    ]
    assert [percents(row[2]) for row in rows] == pytest.approx(expected, abs=0.006)


def test_classifier_and_tagger_show_labels_and_entities(visit, get_model) -> None:
    page = visit().open("#/classify?model=classifier&text=the+door+was+open")
    (expected,) = get_model("classifier").predict("the door was open")
    rows = cells(page.get_by_role("table", name="Labels"))
    assert {row[0].removesuffix(" (predicted)"): percents(row[2]) for row in rows} == (
        pytest.approx(expected["probabilities"], abs=0.006)
    )
    page = visit().open("#/tag?model=tagger&text=the+door+in+london")
    (prediction,) = get_model("tagger").predict("the door in london")
    rows = cells(page.get_by_role("table", name="Tags"))
    assert [row[1] for row in rows] == list(prediction["tags"])
    marked = [one.removesuffix("LOC").strip() for one in page.locator("mark").all_inner_texts()]
    assert marked == [one["text"] for one in prediction["entities"]]


def test_answer_follows_the_threshold(visit) -> None:
    page = visit().open("#/answer?model=answering&question=door&text=the+door+was+open")
    slider = page.get_by_role("slider", name="“No answer” is predicted")
    slider.fill("100")
    page.locator("mark").wait_for()
    slider.fill("0")
    page.locator(".notice", has_text="No answer.").wait_for()
    assert page.locator("mark").count() == 0
    assert page.evaluate("document.activeElement.type") == "range", "the keyboard stays at it"


def test_corpus_shows_the_answers_of_passages(visit, site) -> None:
    page = visit().open("#/corpus?model=answering&question=which+river")
    page.locator("mark").first.wait_for()
    with Client(site.url, model="answering") as client:
        (answers,) = client.answer("which river", top_k=5)
    cards = page.locator(".card")
    assert cards.locator("h2").all_inner_texts() == [one["answer"] for one in answers]
    assert cards.locator("mark").all_inner_texts() == [one["answer"] for one in answers]
    assert cards.locator(".passage").all_inner_texts() == [one["passage"] for one in answers]
    assert answers[0]["where"] in cards.first.inner_text()


def test_similarity_and_search_show_cosines(visit, get_model) -> None:
    texts = ["the door was open", "a deep river", "the river was deep"]
    tab = visit()
    page = tab.open("#/similarity?model=encoder")
    page.get_by_label("Texts, one per line").fill("\n".join(texts))
    page.get_by_text("Most similar").wait_for()
    tab.settle()
    figure = page.get_by_role("figure", name="Cosine similarity")
    page.get_by_text("3 the river w").wait_for()
    np.testing.assert_allclose(
        numbers_of(figure), get_model("encoder").similarity(texts, texts), atol=1e-3
    )
    page = tab.open("#/search?model=encoder&query=river")
    page.get_by_label("Texts to search").fill("\n".join(texts))
    page.get_by_text("The nearest of 3").wait_for()
    index = Index.open(get_model("encoder"), texts)
    (hits,) = index.search(["river"], top_k=len(texts))
    scores = [hit.score for hit in sorted(hits, key=lambda hit: hit.row)]
    best = texts[int(np.argmax(scores))]
    assert cells(page.get_by_role("table", name="Nearest texts"))[0][0] == best
    heads = page.get_by_role("table", name="Nearest texts").locator("thead th")
    assert heads.all_inner_texts()[-1] == "Cosine"
    page.get_by_label("Texts to search").fill("\n".join([*texts, "door " * 60]))
    page.get_by_text("62 tokens, but at most 32").wait_for()
    page.get_by_label("Texts to search").fill("\n".join(texts))  # whose vectors are still there
    page.get_by_text("The nearest of 3").wait_for()


def test_a_view_whose_head_is_missing_says_so_and_shows_a_model_that_has_it(visit) -> None:
    tab = visit()
    page = tab.open("#/tag")
    says = page.locator(".notice").inner_text()
    assert says.startswith("pretrained is only pre-trained: it has no tags. Serve a tagger: ")
    tab.open("#/classify?model=tagger")  # now the page knows what the tagger is
    page.goto(f"{tab.url}#/tag?model=classifier")
    page.get_by_role("link", name="Show it with tagger").click()
    page.get_by_role("heading", name="Word by word").wait_for()


def test_the_servers_error_is_shown_in_one_line(visit) -> None:
    tab = visit()
    page = tab.open("#/fill")
    page.get_by_label("Text").fill("door " * 200)
    page.locator(".status.error").wait_for()
    said = page.locator(".status.error").inner_text()
    assert "tokens" in said
    assert "\n" not in said


def test_results_under_an_error_are_dimmed(visit) -> None:
    tab = visit()
    page = tab.open(f"#/fill?text={TEXT_IN_LINK}&words=1")
    parts = {name: page.locator(name).first for name in (".bars", ".words")}

    def is_dimmed(name: str) -> bool:
        has_opacity: bool = parts[name].evaluate(
            "one => { for (; one; one = one.parentElement)"
            " if (getComputedStyle(one).opacity < 1) return true; return false; }"
        )
        return has_opacity

    assert not any(map(is_dimmed, parts))
    page.get_by_label("Text", exact=True).fill("")
    page.get_by_text("Enter a text.").wait_for()
    assert all(map(is_dimmed, parts)), parts
    page.get_by_label("Text", exact=True).fill("the river was deep.")
    page.get_by_role("button", name="river", exact=True).click()
    page.get_by_role("heading", name="The blank · was “river”").wait_for()
    assert not any(map(is_dimmed, parts))
    tab.page.route("**/explore/*", lambda route: route.abort())
    page.get_by_label("Text", exact=True).fill("a door.")
    page.get_by_text("The server does not answer.").wait_for()
    assert all(map(is_dimmed, parts)), parts
    tab.faults.clear()  # the console says that the requests were stopped


def test_a_sentence_without_the_word_is_named_as_people_count(visit) -> None:
    page = visit().open("#/contexts?word=door&texts=the+door%0Aa+river")
    page.get_by_text("Sentence 2 does not contain “door”.", exact=True).wait_for()


def test_error_of_a_claim_is_shown_below_its_form(visit) -> None:
    page = visit().open("#/attention?claim=previous")
    page.get_by_label("Sentences, one per line").fill("door " * 200)
    page.get_by_role("button", name="Test it").click()
    message = page.locator(".status.error")
    message.wait_for()
    assert message.inner_text().startswith("Sentence 1: ")
    box, form = (
        one.bounding_box() for one in (message, page.get_by_role("button", name="Test it"))
    )
    assert box["y"] > form["y"], "what is wrong with a claim is said under it"


def test_invalid_link_shows_the_view(visit) -> None:
    tab = visit()
    for link in (
        f"attention?text={TEXT_IN_LINK}&words=3,99&layer=x&head=9&measure=y",
        "steps?token=900",
    ):
        page = tab.open(f"#/{link}")
        assert page.locator(".status.error").count() == 0, link
        assert page.get_by_role("button", name="[MASK]").first.is_visible()


VIEWS = {
    "fill": f"text={TEXT_IN_LINK}&words=1",
    "guess": f"text={TEXT_IN_LINK}&words=1&shown=1",
    "next": f"text={TEXT_IN_LINK}&words=1",
    "contexts": "",
    "pieces": f"text={TEXT_IN_LINK}&pair=a",
    "steps": f"text={TEXT_IN_LINK}&words=1",
    "layer": f"text={TEXT_IN_LINK}&words=1&layer=1&head=1",
    "attention": f"text={TEXT_IN_LINK}&words=1&merge=1",
    "pair": "text=the+[MASK]+was+open&other=a+[MASK]+was+open",
    "occlusion": "model=classifier&text=the+door",
    "follow": "",
    "classify": "model=classifier",
    "tag": "model=tagger&text=the+door",
    "answer": "model=answering&question=door&text=the+door",
    "corpus": "model=answering&question=door",
    "similarity": "model=encoder",
    "search": "model=encoder&query=door&texts=the+door%0Aa+river",
}


LIKE_OPTIONS = {
    "fill": "text=--the+door+was+open&words=3",
    "attention": "text=top_k=the+door&pair=-a",
    "follow": "text=-the+door&pair=--out+it",
    "classify": "model=classifier&text=--help",
    "answer": "model=answering&question=-door&text=--the+door",
    "similarity": "model=encoder&texts=--the+door%0A-a",
    "search": "model=encoder&query=-door&texts=-the+door%0A--a",
}
"""Texts that a command line would take for options or settings."""


@pytest.mark.parametrize(("view", "values"), [*VIEWS.items(), *LIKE_OPTIONS.items()])
def test_the_calls_that_one_copies_run_as_they_are(
    tab: Visit, view: str, values: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tab.show(f"#/{view}?{values}")
    page.get_by_text("The same call as curl").click()

    def copy(name: str) -> str:
        page.get_by_role("button", name=f"Copy {name}").click()
        text: str = page.evaluate("navigator.clipboard.readText()")
        return text

    words = shlex.split(copy("curl"))
    assert words[0] == "curl"
    url = next(word for word in words if word.startswith("http"))
    answer = httpx.post(url, json=json.loads(words[words.index("-d") + 1]))
    assert answer.status_code == 200, answer.text
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(copy("Python"), view, "exec"), {})
    *before, line = copy("Command line").split(" && ")
    monkeypatch.chdir(tmp_path)
    for command in before:
        subprocess.run(command, shell=True, check=True)
    program, *words = shlex.split(line)
    assert program == "bertworks"
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout or list(tmp_path.iterdir())


def test_a_server_with_keys_asks_for_one_and_keeps_it_out_of_the_link(
    visit, directories, start
) -> None:
    key = "0123456789abcdef"
    with start({"m": directories["pretrained"]}, keys=Keys({"me": key})) as keyed:
        tab = visit(server=keyed)
        page = tab.page
        page.goto(f"{tab.url}#/fill?text={TEXT_IN_LINK}&words=1")
        page.get_by_label("Key").fill("a wrong one, alas")
        page.get_by_role("button", name="Use this key").click()
        page.get_by_text("does not accept this key").wait_for()
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_role("heading", name="The blank · was “door”").wait_for()
        assert key not in page.url
        assert key not in page.content()
        page.get_by_text("The same call as curl").click()
        assert "$KEY" in page.locator("pre").first.inner_text()
        page.reload()
        page.get_by_role("heading", name="The blank · was “door”").wait_for()


def test_pages_of_routes_ask_for_a_key(visit, directories, start) -> None:
    key = "0123456789abcdef"
    with start({"m": directories["pretrained"]}, keys=Keys({"me": key})) as keyed:
        tab = visit(server=keyed)
        page = tab.page
        page.goto(f"{tab.url}docs")
        page.get_by_label("Key").fill("a wrong one, alas")
        page.get_by_role("button", name="Use this key").click()
        page.get_by_text("does not accept this key").wait_for()
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_role("heading", name="POST /embed", exact=True).wait_for()
        assert page.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") != "none"
        page.goto(f"{tab.url}openapi.json")
        description = json.loads(page.locator("pre").inner_text())
        assert description["components"]["securitySchemes"] == {
            "key": {"type": "http", "scheme": "bearer"}
        }
