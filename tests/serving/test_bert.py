"""BERT's verbs over HTTP: the same answers as the library's, in any batch."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.errors import DataError
from bertworks.inference.settings import GenerationSettings
from bertworks.model import Model
from bertworks.serving.models import Models
from bertworks.serving.queue import Queue
from bertworks.serving.runners import Text
from bertworks.serving.settings import ServeSettings
from tests.serving.conftest import LIMIT, Running, save_changed

TEXT = "the door was [MASK] in [MASK]"
SAVED_MODELS = Path(__file__).parents[1] / "saved_models"


def close(one: object, other: object) -> bool:
    """Whether two answers are the same, but for the last digits of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return one == pytest.approx(other, abs=1e-5)
    return one == other


def test_next_sentence_takes_a_pair_or_pairs(server: Running) -> None:
    pairs = [["the door was open", "a river"], ["a", "b"]]
    answers = server.ask("/next-sentence", {"inputs": pairs, "model": "pretrained"})
    one = server.ask("/next-sentence", {"inputs": pairs[0], "model": "pretrained"})
    assert close(one, answers[:1])
    wrong = server.post("/next-sentence", {"inputs": [["a"]], "model": "pretrained"})
    assert wrong.status_code == 422


def test_classify_takes_one_text_or_several(server: Running, get_model) -> None:
    texts = ["the door", "a deep river"]
    expected = get_model("classifier").predict(texts)
    assert close(server.ask("/classify", {"inputs": texts, "model": "classifier"}), expected)
    one = server.ask("/classify", {"inputs": texts[0], "model": "classifier"})
    assert close(one, expected[:1])


def test_long_rows_are_an_error_truncated_or_read_in_windows(server: Running, get_model) -> None:
    long = "door open river deep " * 30
    body = {"inputs": long, "model": "classifier"}
    refused = server.post("/classify", body)
    assert refused.status_code == 413
    assert refused.json()["error"].startswith("inputs: 122 tokens, but at most 48 fit")
    truncated = server.post("/classify", {**body, "truncate": True})
    assert truncated.headers["x-truncated-texts"] == "1"
    with pytest.warns(match="too long"):
        assert close(truncated.json(), get_model("classifier").predict([long]))
    model = get_model("classifier")
    whole = server.ask("/classify", {**body, "windows": True})
    task = model.task
    windowed = type(task)(task.tokenizer, task.settings.with_values(truncation="windows"))
    expected = type(model)(model.tokenizer, windowed, model.network).predict([long])
    assert close(whole, expected)


@pytest.mark.long
def test_a_model_that_reads_windows_also_truncates(start) -> None:
    path = str(SAVED_MODELS / "windows")
    model = bw.load(path, device="cpu")
    long = "the door was open " * 20
    values = {"truncation": "longest_first", "stride": None, "window_pooling": "mean"}
    task = type(model.task)(model.tokenizer, model.task.settings.with_values(**values))
    assert model.task.settings.window_pooling == "max"
    with start({"windows": path}) as server:
        answers = [server.ask("/classify", {"inputs": long, "truncate": on}) for on in (True, None)]
    with pytest.warns(match="too long"):
        assert close(answers[0], Model(model.tokenizer, task, model.network).predict([long]))
    assert close(answers[1], model.predict([long]))


@pytest.mark.long
def test_replaced_tokens_are_the_librarys(start) -> None:
    path, texts = str(SAVED_MODELS / "electra"), ["the door was open", "a deep river", ""]
    with start({"electra": path}) as server:
        answers = server.ask("/predict-rows", {"rows": texts})
    assert close(answers, bw.load(path, device="cpu").predict(texts))


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/predict-rows", {"rows": ["door " * 60, "door", {"text": "a " * 60}]}, "classifier"),
        (
            "/predict-rows",
            {"rows": [["door", "a " * 60], ["a", "b"], ["a " * 60] * 2]},
            "reranker",
        ),
        ("/tag", {"inputs": ["a" * 50, "door", "b" * 50]}, "tagger"),
        ("/predict-rows", {"rows": ["a" * 50, {"words": ["a", "b" * 50]}]}, "tagger"),
    ],
)
def test_rows_that_the_task_truncates_are_counted(
    server: Running, path: str, body: dict, name: str
) -> None:
    answer = server.post(path, {**body, "model": name})
    assert (answer.status_code, answer.headers["x-truncated-texts"]) == (200, "2"), answer.text


@pytest.mark.long
def test_a_question_that_is_truncated_is_counted(directories, start, tmp_path) -> None:
    short = save_changed(directories["answering"], tmp_path / "short", max_question_tokens=4)
    with start({"short": short}) as server:
        requests = [{"question": words, "context": "the door"} for words in ("a b", "a b c d e")]
        answer = server.post("/answer", {"inputs": requests})
        assert (answer.status_code, answer.headers["x-truncated-texts"]) == (200, "1")


def test_tag_is_the_librarys(server: Running, get_model) -> None:
    texts = ["the door was open in london.", "a " * 40]
    answers = server.ask("/tag", {"inputs": texts, "model": "tagger"})
    assert close(answers, get_model("tagger").predict(texts))
    assert len(answers[1]["words"]) == 40, "windows, and nothing is truncated"


def test_answer_is_the_librarys(server: Running, get_model) -> None:
    rows = [
        {"question": "was it deep", "context": "the door was open in london. a river was deep"},
        {"question": "what", "context": "a " * 60},
    ]
    most = get_model("answering").task.settings.n_best + 1  # and "no answer"
    answers = server.ask("/answer", {"inputs": rows, "n_best": most, "model": "answering"})
    pairs = [(row["question"], row["context"]) for row in rows]
    assert close(answers, get_model("answering").predict(pairs))
    (few,) = server.ask("/answer", {"inputs": rows[0], "n_best": 2, "model": "answering"})
    assert close(few["alternatives"], answers[0]["alternatives"][:2])
    more = server.ask("/answer", {"inputs": rows, "n_best": 100, "model": "answering"})
    assert close(more, answers), "a model gives at most its own"
    for threshold, is_none in ((-1e9, True), (1e9, False)):
        body = {"inputs": rows[0], "null_threshold": threshold, "model": "answering"}
        assert (server.ask("/answer", body)[0]["answer"] == "") is is_none


@pytest.mark.long
def test_generate_does_not_depend_on_other_requests(server: Running, get_model) -> None:
    sampling = {"temperature": 1.0, "seed": 3, "max_new_tokens": 6}
    prompts = ["the door", "a river", "the door"]
    body = {"inputs": prompts, "model": "causal", **sampling}
    expected = get_model("causal").generate(prompts, **sampling)
    assert expected[0] != expected[2], "a repeated prompt is continued differently"
    with ThreadPoolExecutor(8) as pool:
        for answers in pool.map(lambda _: server.ask("/generate", body), range(8)):
            assert [one["generated_text"] for one in answers] == expected
    wrong = server.post("/generate", {**body, "max_new_tokens": 513})
    assert wrong.json()["error"] == "max_new_tokens: at most 512"
    assert server.post("/generate", {**body, "temperature": 0, "top_k": 2}).status_code == 400
    long = server.post("/generate", {"inputs": "door " * 60, "model": "causal"})
    assert long.status_code == 413


@pytest.mark.long
@pytest.mark.parametrize("batch_tokens", [1, 2048])  # with room for no memory, and for all
def test_generations_of_other_lengths_share_batches_and_let_others_pass(
    directories, batch_tokens: int
) -> None:
    models = Models({name: directories[name] for name in ("causal", "encoder")}, device="cpu")
    model, batches = models.get("causal").model, list[int]()
    queue = Queue(observe=lambda rows, tokens, seconds: batches.append(rows))
    runner = models.get("causal").get_generation_runner(batch_tokens)
    tickets, expected = [], []
    for client, (count, temperature) in enumerate([(40, 0.0), (3, 0.0), (40, 1.0)]):
        settings = GenerationSettings(max_new_tokens=count, temperature=temperature)
        prompts = ["the door", "a river was deep", "the door"]
        expected.append(model.generate(prompts, **settings.model_dump()))
        tickets.append(
            queue.submit(
                runner,
                [Text("", prompt) for prompt in prompts],
                [20] * 3,
                client=client,
                prepare=partial(runner.prepare, settings=settings, counts=Counter()),
            )
        )
        queue.prepare_some()
    assert queue.run_batch()
    assert batches == [9], "all of them together"
    assert [ticket.future.done() for ticket in tickets] == [False, True, False]
    embed = models.get("encoder").get_embed_runner()
    single = queue.submit(embed, [Text("", "the door")], [20], client="single")
    queue.prepare_some()
    queue.run_batch()
    queue.run_batch()
    assert single.future.done(), "it waits for two batches at most"
    assert not tickets[0].future.done()
    while queue.run_batch():
        pass
    assert [ticket.future.result(0) for ticket in tickets] == expected


def test_predict_rows_takes_rows_of_any_task(server: Running, get_model) -> None:
    for name, row in (
        ("choice", {"prompt": "the door", "choices": ["was open", "river"]}),
        ("classifier", {"text": "the door"}),
        ("tagger", {"words": ["the", "door"]}),
    ):
        response = server.post("/predict-rows", {"rows": [row, row], "model": name})
        assert response.status_code == 200, response.text
        assert close(response.json(), get_model(name).predict([row, row]))
    for name, row in (
        ("tagger", {"text": None}),
        ("answering", {"question": None, "context": None}),
    ):
        response = server.post("/predict-rows", {"rows": [row], "model": name})
        assert response.status_code == 200, response.text
    wrong = server.post("/predict-rows", {"rows": [{"words": ["a"]}], "model": "classifier"})
    assert (wrong.status_code, wrong.json()["error_type"]) == (422, "Tokenizer")
    assert wrong.json()["error"].startswith("rows: its rows are not texts but lists of words")


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/fill-mask", {"inputs": TEXT}, "fill-mask"),
        ("/next-sentence", {"inputs": ["a", "b"]}, "next-sentence"),
        ("/classify", {"inputs": "a"}, "classify"),
        ("/tag", {"inputs": "a"}, "tag"),
        ("/answer", {"inputs": {"question": "a", "context": "b"}}, "answer"),
        ("/generate", {"inputs": "a"}, "generate"),
        ("/predict-rows", {"rows": [{"text": "a"}]}, "predict-rows"),
    ],
)
def test_a_model_refuses_what_it_was_not_trained_for(
    server: Running, path: str, body: dict, name: str
) -> None:
    answer = server.post(path, {**body, "model": "encoder"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    message = answer.json()["error"]
    assert f"was trained for nothing but vectors, not for {name}" in message
    assert "It supports: embed." in message


def test_prompt_needs_room_for_a_new_token(server: Running, get_model) -> None:
    """A causal model puts no special tokens around it."""
    for count, status in ((LIMIT - 1, 200), (LIMIT, 413)):
        body = {"model": "causal", "inputs": "door " * count, "max_new_tokens": 5}
        answer = server.post("/generate", body)
        assert answer.status_code == status
        if status == 413:
            assert f"inputs: {LIMIT} tokens, but at most {LIMIT - 1} fit" in answer.text
            with pytest.raises(DataError, match=f"{LIMIT} tokens; a prompt needs .* room"):
                get_model("causal").generate(body["inputs"], max_new_tokens=5)


def test_an_unknown_field_is_named_with_the_nearest(server: Running) -> None:
    answer = server.post("/fill-mask", {"inputs": TEXT, "topk": 3, "model": "pretrained"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "topk: no such field. The nearest valid name is 'top_k'"


@pytest.mark.parametrize("name", ["choice", "both orders"])
def test_each_sequence_of_a_row_is_counted_before_it_is_tokenised(
    directories, start, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each choice comes with the whole prompt; a pair may be read in both orders."""
    sizes: list[list[int]] = []
    submit = Queue.submit

    def record(queue, runner, items, estimates, **options):
        ticket = submit(queue, runner, items, estimates, **options)
        sizes.append(ticket.costs.copy())
        return ticket

    monkeypatch.setattr(Queue, "submit", record)
    rows: list[object] = [
        {"prompt": "the door was open", "choices": ["a", "river deep"] * 3},
        {"prompt": "the " * 100, "choices": ["a"] * 4},
    ]
    source = directories["choice"]
    if name == "both orders":
        rows = [["the door", "a river"], ["the " * 100, "a"]]
        source = save_changed(directories["reranker"], tmp_path / "model", both_orders=True)
    with start({"model": source}, ServeSettings(max_texts=9)) as server:
        if name == "choice":
            answer = server.post("/predict-rows", {"rows": rows})
            assert (answer.status_code, answer.json()["error"]) == (
                413,
                "rows: 10 choices, but at most 9",
            )
            assert not sizes
            rows = [{**rows[0]}, {"prompt": "the " * 100, "choices": ["a"] * 3}]
        server.ask("/predict-rows", {"rows": rows})
        tokens = int(server.post("/predict-rows", {"rows": rows}).headers["x-compute-tokens"])
    (estimates, _) = sizes
    count = 6 if name == "choice" else 2
    assert estimates[1] == (3 if name == "choice" else 2) * LIMIT
    assert estimates[0] >= count * (3 + 4)
    assert sum(estimates) >= tokens > 0


@pytest.mark.long
def test_all_models_answer_at_once(server: Running, get_model) -> None:
    """Callers, models and tasks mixed: everyone gets their own."""
    texts = ["the door", "a river was deep in london", "open"]
    requests = [
        ("/embed", {"inputs": texts}, get_model("encoder").embed(texts).tolist()),
        (
            "/classify",
            {"inputs": texts, "model": "classifier"},
            get_model("classifier").predict(texts),
        ),
        ("/tag", {"inputs": texts, "model": "tagger"}, get_model("tagger").predict(texts)),
        ("/classify", {"inputs": texts, "model": "topics"}, get_model("topics").predict(texts)),
    ]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda at: server.ask(*requests[at % 4][:2]), range(64)))
    for at, answer in enumerate(answers):
        assert close(answer, requests[at % 4][2])


@pytest.mark.long
def test_outputs_that_are_not_finite_are_an_error_and_never_null(directories, start) -> None:
    sources = {"m": directories["classifier"], "v": directories["encoder"]}
    with start(sources, backend="torch") as server:  # whose weights are changed
        for name in ("m", "v"):
            network = server.service.models.get(name).model.network
            tokenizer = server.service.models.get(name).model.tokenizer
            with torch.no_grad():
                weight = network.encoder.embeddings.word_embeddings.weight
                weight[tokenizer.token_to_id("river")] = 3e38
        for path, body in (("/classify", {"model": "m"}), ("/embed", {"model": "v"})):
            for texts in (["the door", "a river", "open"], ["river"]):
                refused = server.post(path, {**body, "inputs": texts})
                assert refused.status_code == 424, path
                assert "not finite" in refused.json()["error"]
            assert server.post(path, {**body, "inputs": ["the door", "open"]}).status_code == 200


def test_precisions_do_not_share_a_batch(server: Running) -> None:
    full, half = (
        np.array(server.ask("/encode", {"texts": ["the door"], "precision": name})["results"])
        for name in ("fp32", "bf16")
    )
    assert 1e-5 < np.abs(full - half).max() < 0.1
