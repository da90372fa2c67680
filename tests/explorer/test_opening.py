"""What a person sees first, of each kind of model: a view that it has, an example that it can do,
and, where something is missing, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bertworks import explorer, load
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.explorer.available_views import REQUIREMENTS, view_error
from bertworks.model import Model
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from tests.explorer.test_browser import cells
from tests.serving.conftest import PIECES, Running, config, running, tasks

FIRST_VIEWS = {
    "pretrained": "Fill in the blank",
    "causal": "Fill in the blank",
    "encoder": "Similarity",
    "classifier": "Classify",
    "topics": "Classify",
    "reranker": "Classify",
    "tagger": "Tag",
    "answering": "Answer",
    "choice": "Similarity",
}
"""The view that opens, for each model of `tests/serving`."""


LENGTH = 192  # the pieces are letters


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of the models of `tests/serving`, with room for the page's examples."""
    root, directories = tmp_path_factory.mktemp("models"), {}
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    for name in FIRST_VIEWS:
        task: Any = tasks(tokenizer)[name]
        causal = {"attention": "causal"} if name == "causal" else {}
        geometry = config(max_position_embeddings=LENGTH, **causal)
        if isinstance(task, PretrainingTask):
            task = PretrainingTask(tokenizer, task.instances, causal=task.causal, max_length=LENGTH)
        elif task is not None:
            settings = task.settings.with_values(max_seq_length=LENGTH)
            task = type(task)(tokenizer, settings)
        network = (
            BareEncoder(Encoder(geometry, pooler=True)) if task is None else task.network(geometry)
        )
        sentence = SentenceSettings(max_seq_length=LENGTH) if task is None else None
        Model(tokenizer, task, network.eval(), sentence=sentence).save(root / name)
        directories[name] = str(root / name)
    with running(directories) as started:
        yield started


def titles(page: Any) -> dict[str, str]:
    """The views that the model has: the address of each, by its title."""
    return {
        link.inner_text(): link.get_attribute("href")
        for link in page.locator("nav a:not(.unavailable)").all()
    }


@pytest.mark.long
@pytest.mark.parametrize("name", FIRST_VIEWS)
def test_each_view_of_each_model_opens_without_an_error(visit, name: str) -> None:
    tab = visit()
    page = tab.open(f"#/?model={name}")
    assert page.locator("h1").inner_text() == FIRST_VIEWS[name]
    links = titles(page)
    assert FIRST_VIEWS[name] in links
    page.goto(f"{tab.url}#/nonsense?model={name}")
    tab.settle()
    assert page.locator("h1").inner_text() == FIRST_VIEWS[name], "a link that names no view"
    for title in links:
        page = tab.show(links[title])
        assert page.locator("h1").inner_text() == title
        assert page.locator(".status.error").all_inner_texts() == [], title
        assert page.locator("h1 + p + .notice").count() == 0, title
        assert "has no head" not in page.locator("main").inner_text(), title


# A server's page opens every view of every model, by the same code.
OPENED_AS_FILES = ("pretrained", "encoder", "classifier", "answering")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OPENED_AS_FILES else pytest.mark.slow)
        for name in FIRST_VIEWS
    ],
)
def test_a_file_has_no_dead_end(visit, get_model, name: str) -> None:
    pair = "the door was open" if name in ("answering", "reranker") else None
    tab = visit(data=explorer.explain(get_model(name), "the door was open", pair))
    for title, link in titles(tab.open()).items():
        page = tab.show(link)
        assert page.locator("h1").inner_text() == title
        assert page.locator(".status.error").all_inner_texts() == [], title
        says = page.locator("main").inner_text()
        for dead in ("has no head", "for one text only", "cannot compute"):
            assert dead not in says, title


@pytest.mark.long
def test_a_file_of_a_text_without_a_blank_has_one_masked_word(
    visit, get_model: Callable[[str], Model]
) -> None:
    model, text = get_model("pretrained"), "the door was open in london."
    data = explorer.explain(model, text)
    word = data["masked"]["word"]
    name = data["pieces"]["words"][word]["text"]
    gains = {
        one["word"]: one["blanks"][0]["both"]["original"]["probability"]
        - one["blanks"][0]["left"]["original"]["probability"]
        for one in data["masks"]
        if len(data["pieces"]["words"][one["word"]]["text"]) >= 4
    }
    assert word == max(gains, key=lambda one: gains[one])
    for view in ("steps", "attention", "heads", "occlusion"):
        assert data["masked"][view] == getattr(explorer, view)(model, text, words=[word])
    tab = visit(data=data)
    page = tab.open("#/steps")
    assert page.get_by_role("heading", name="The answer: the blank").is_visible()
    page.get_by_role("button", name=name, exact=True).first.click()
    says = f"Press “{name}” to mask it: this text has no blank."
    page.locator(".notice", has_text=says).wait_for()
    page = tab.open("#/occlusion")
    rows = cells(page.get_by_role("table", name="Effect of each word"))
    assert len(rows) == len(data["masked"]["occlusion"]["words"])
    page = tab.open("#/attention?layer=1&head=1")
    page.locator(".notice", has_text=says).wait_for()
    page.get_by_role("button", name=name, exact=True).first.click()
    page.get_by_role("button", name="Switch off: layer 2, head 2").click()
    page.get_by_role("heading", name="Without layer 2, head 2").wait_for()


@pytest.mark.long
def test_a_text_with_a_blank_needs_no_other(get_model: Callable[[str], Model]) -> None:
    model = get_model("pretrained")
    assert explorer.explain(model, "the [MASK] was open")["masked"] is None
    assert explorer.explain(model, "the door was", "a river")["masked"] is None
    assert explorer.explain(get_model("classifier"), "the door")["masked"] is None
    assert explorer.explain(model, "...")["masked"]["word"] in (0, 1, 2)


@pytest.mark.long
def test_a_reason_names_the_model_what_it_lacks_and_what_to_serve(
    get_model: Callable[[str], Model],
) -> None:
    says = {
        (name, view): str(view_error(get_model(name), view))
        for name in FIRST_VIEWS
        for view in REQUIREMENTS
    }
    assert says["pretrained", "classify"] == (
        "pretrained is only pre-trained: it has no labels. "
        "Serve a classifier: bertworks finetune classification trains one."
    )
    assert says["classifier", "fill"].startswith("classifier is a classifier: it predicts no words")
    assert says["encoder", "predict"].startswith("encoder is an encoder without a head: it predic")
    assert says["choice", "tag"].startswith("choice is trained for choice: it has no tags. Serve a")
    assert all(one == "None" or ". Serve " in one for one in says.values())
    described = explorer.describe(get_model("classifier"), "shop")["views"]
    assert list(described) == list(REQUIREMENTS)
    assert described["fill"].startswith("shop is a classifier: it predicts no words.")


@pytest.mark.long
def test_pieces_are_named_in_quotes(visit) -> None:
    page = visit().open("#/steps?model=pretrained&text=the+door&words=&token=1")
    assert page.get_by_role("heading", name="Similarity of “the” to its vector").is_visible()
    page = visit().open("#/contexts?model=pretrained&word=door&texts=the+door")
    page.get_by_text("“door” occurs 1 time.").wait_for()
    page = visit().open("#/attention?model=pretrained&text=the+door")
    assert "find, say, the previous word more often" in page.locator("main").inner_text()


@pytest.mark.long
def test_a_model_that_compares_poorly_names_one_that_was_trained_to(visit, start) -> None:
    # A lazy server knows what a model was trained for once it is loaded.
    visit().open("#/search?model=encoder&query=door&texts=door").get_by_text(
        "The nearest of"
    ).wait_for()
    page = visit().open("#/search?model=pretrained&query=door&texts=door")
    notice = page.locator(".notice")
    assert "pretrained was not trained to compare texts" in notice.inner_text()
    notice.get_by_role("link", name="Show it with encoder.").click()
    page.get_by_text("The nearest of").wait_for()
    assert page.locator(".notice").count() == 0
    with start({"mini": "mini"}) as alone:
        says = visit(server=alone).open("#/search").locator(".notice").inner_text()
        assert says.endswith("Serve a model that was: bertworks serve mini mini-sentences")


@pytest.mark.long
def test_the_examples_show_with_mini_what_their_views_teach(visit) -> None:
    tab = visit()
    page = tab.open("#/pieces?model=pretrained")
    examples = page.evaluate(
        "async url => ({...await import(url)})", f"{tab.url}explore/static/examples.js"
    )
    mini, sentences = load("mini", device="cpu"), load("mini-sentences", device="cpu")
    sentence = examples["SENTENCE"]
    words = {"words": [sentence["word"]]}
    (blank,) = explorer.fill(mini, sentence["text"], **words)["blanks"]
    both, left = blank["both"], blank["left"]["original"]
    assert both["original"]["rank"] == 1
    assert both["original"]["probability"] > 0.4, "both sides find the word"
    assert left["probability"] < 0.02, "the left side alone does not"
    effects = explorer.occlusion(mini, sentence["text"], **words)["words"]
    assert min(one["change"] for one in effects) < -0.4, "one word decides"

    first, second = examples["MINIMAL_PAIR"]["masked"]
    found = explorer.minimal_pair(mini, first, second)
    assert found["prediction"]["probability"] - found["other_prediction"]["probability"] > 0.5
    assert mini.next_sentence(*examples["SENTENCE_PAIR"]) > 0.9

    meanings = examples["CONTEXTS"]
    answer = explorer.contexts(mini, meanings["word"], meanings["texts"])
    cosines = np.array(answer["similarity"][-1])
    assert min(cosines[0, 1], cosines[2, 3]) > cosines[:2, 2:].max(), "by meaning"
    assert np.allclose(answer["static"], 1, atol=1e-3)

    library = examples["SEARCH"]
    scores = sentences.similarity([library["query"]], library["texts"])[0]
    order = np.argsort(-scores)
    assert library["texts"][order[0]].startswith("Interest")
    assert scores[order[0]] > 2 * scores[order[1]]
    similar = np.array(
        sentences.similarity(examples["SIMILARITY_TEXTS"], examples["SIMILARITY_TEXTS"])
    )
    assert min(similar[0, 1], similar[2, 3]) > similar[:2, 2:].max() + 0.3
