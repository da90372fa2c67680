"""`search`, and retrieval's other verbs, as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bertworks as bw

from .conftest import CPU, World, bertworks, fails, succeeds


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    lines = [f"the {noun} was {verb}" for noun in ("door", "river") for verb in ("open", "shut")]
    file.write_text("\n".join([*lines, "", "a letter " * 20]) + "\n")
    return file


def test_search_shows_the_nearest_texts(world: World, texts: Path) -> None:
    words = ("search", world.pretrained, texts, "the river was open", *CPU, "--top-k", 3)
    result = succeeds(*words)
    heading, _, *rows = result.stdout.splitlines()
    assert heading.split() == ["score", "line", "text"]
    assert rows[0].split(maxsplit=2) == ["1.0000", "3", "the river was open"]
    assert len(rows) == 3
    every = bertworks(*words[:-1], 9, "a door").stdout.splitlines()
    assert "the river was open" in every
    assert "a door" in every
    assert max(map(len, every)) <= 80
    assert any(line.endswith("…") for line in every)  # the long text is cut
    asked = bertworks(*words[:3], "-", *CPU, "--json", stdin="the river was open\n")
    (answer,) = map(json.loads, asked.stdout.splitlines())
    assert answer["query"] == "the river was open"
    best = answer["hits"][0]
    assert (best["row"], best["where"], best["text"]) == (2, f"{texts}:3", answer["query"])
    assert best["score"] == best["similarity"] == pytest.approx(1, abs=1e-6)


@pytest.mark.long
def test_search_of_many_texts_names_the_faster_way(
    world: World, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("search", world.pretrained, texts, "a river", *CPU)
    assert "--approximate" not in bertworks(*words).stderr
    monkeypatch.setattr("bertworks.analysis.retrieval.index.MANY", 5)  # as many as there are
    assert "--approximate" not in bertworks(*words).stderr
    monkeypatch.setattr("bertworks.analysis.retrieval.index.MANY", 4)
    assert "5 texts: --approximate is faster" in bertworks(*words).stderr


def test_an_index_is_kept(world: World, texts: Path, tmp_path: Path) -> None:
    file, index_dir = tmp_path / "texts.txt", tmp_path / "kept"
    file.write_text(texts.read_text())
    words = ("search", world.pretrained, file, "a river", *CPU, "--index", index_dir, "--json")
    first, again = bertworks(*words), bertworks(*words)
    assert first.exit_code == 0, first.output
    assert first.stdout == again.stdout
    assert np.load(index_dir / "vectors.npy").shape == (5, 16)
    file.write_text("another text\n")
    fails(*words, says="started with other texts")


@pytest.mark.long
def test_impossible_search_is_refused_in_one_line(
    world: World, texts: Path, tmp_path: Path
) -> None:
    for words, says in (
        ((world.pretrained, tmp_path / "none.txt", "a"), "no such file"),
        ((world.pretrained, texts, " "), "empty text"),
        ((world.pretrained, texts, "a " * 99), "at most 64 fit"),
        ((world.pretrained, texts, "a", "--column", "x"), "lines of text have no columns"),
        ((world.pretrained, texts, "a", "--rerank", world.pretrained), "trained for pretraining"),
        ((world.pretrained, texts, "a", "--rerank", world.classifier), "takes single texts"),
    ):
        fails("search", *words, *CPU, says=says)


@pytest.mark.long
def test_retrieval_is_trained_measured_and_searched(
    world: World, texts: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line)["text"] for line in world.train.read_text().splitlines()]
    train = tmp_path / "train.tsv"
    lines = [f"{row}\t{row.partition(' was ')[2]}" for row in rows]
    train.write_text("anchor\tpositive\n" + "\n".join(lines) + "\n")
    given = ("--train", train, "--dev", train, "--out", tmp_path / "run", *CPU)
    words = ("finetune", "retrieval", "--model", world.pretrained, *given)
    result = succeeds(*words, "epochs=1", "max_seq_length=16", "chunk_tokens=64")
    assert "mrr@10" in result.stdout
    measured = bertworks("evaluate", tmp_path / "run", "--data", train, *CPU, "--json")
    assert 0 < json.loads(measured.stdout)["mrr@10"] <= 1
    pair = ("predict", tmp_path / "run", "the door", "--pair", "a door", *CPU, "--json")
    printed = json.loads(bertworks(*pair).stdout)["prediction"]["similarity"]
    one, two = bw.load(tmp_path / "run", device="cpu").embed(["the door", "a door"])
    assert printed == pytest.approx(float(one @ two), abs=1e-6)
    fails("predict", tmp_path / "run", "the door", *CPU, says="there is one")
    succeeds("search", tmp_path / "run", texts, "a door", *CPU)


@pytest.fixture
def beir_folder(tmp_path: Path, texts: Path) -> Path:
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    lines = [line for line in texts.read_text().splitlines() if line]
    rows = [json.dumps({"_id": f"d{at}", "text": line}) for at, line in enumerate(lines)]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "river open"}))
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    return folder


def test_retrieval_is_evaluated_on_a_folder(
    world: World, beir_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "last.run"
    words = ("evaluate", "bm25", "--data", beir_folder, "--with", world.pretrained, "--run", run)
    result = succeeds(*words, "metrics=mrr,recall@5", "--device", "cpu")
    again = succeeds(*words, "metrics=mrr,recall@5", "--device", "cpu")
    assert again.stdout == result.stdout
    heading, _, *rows = result.stdout.splitlines()
    assert heading.split() == ["ranked", "by", "mrr", "recall@5"]
    assert rows[0].split() == ["bm25", "1.0000", "1.0000"]
    assert rows[2].split()[0] == "hybrid"
    metrics = succeeds(
        *("score", "retrieval", "--data", beir_folder / "qrels/test.tsv", "--predictions", run),
        *("--json", "metrics=mrr"),
    )
    assert f"{json.loads(metrics.stdout)['mrr']:.4f}" == rows[2].split()[1]
    asked = succeeds("evaluate", "bm25", "--data", beir_folder, "--json", "metrics=mrr")
    assert json.loads(asked.stdout) == {"stage": "bm25", "rows": 1, "mrr": 1.0, "notes": []}
    fails("evaluate", "bm25", "--data", beir_folder, "--with", "bm25", says="bm25 is given twice")
    content = run.read_bytes()
    for names in ((run,), ("bm25", "--with", run)):
        onto_itself = (*names, "--data", beir_folder, "--run", run, "--overwrite")
        fails("evaluate", *onto_itself, says="is an input, and would be overwritten")
    assert run.read_bytes() == content
    model = tmp_path / "model"
    shutil.copytree(world.pretrained, model)
    file = next(iter(model.rglob("vocab.txt")))
    vocabulary = file.read_bytes()
    for names in ((model,), ("bm25", "--with", model), ("bm25", "--rerank", model)):
        onto_model = (*names, "--data", beir_folder, "--run", file, "--overwrite")
        fails("evaluate", *onto_model, says="would become part of it")
    assert file.read_bytes() == vocabulary
    hits = json.loads(succeeds("search", "bm25", beir_folder, "river open", "--json").stdout)[
        "hits"
    ]
    assert hits[0]["where"] == f"{beir_folder}/corpus.jsonl:3"
    fails(
        "evaluate",
        "bm25",
        "--data",
        world.dev,
        says="is no folder for retrieval, with corpus.jsonl",
    )
    wrong = ("evaluate", world.pretrained, "--data", world.dev, "--rerank", "x")
    fails(*wrong, says="--rerank is for a folder", status=2)


def test_search_ranks_by_words_and_by_several_models(
    world: World, texts: Path, tmp_path: Path
) -> None:
    result = succeeds("search", "bm25", texts, "open river", "--top-k", 1)
    assert result.stdout.splitlines()[2].split(maxsplit=2)[1:] == ["3", "the river was open"]
    words = ("search", world.pretrained, texts, "open river", "--with", "bm25", "--json", *CPU)
    (answer,) = map(json.loads, succeeds(*words).stdout.splitlines())
    assert answer["hits"][0]["score"] <= 2 / 61
    fails("search", "bm25", texts, "a", "--index", tmp_path / "kept", says="vectors of one model")
    nothing = succeeds("search", "bm25", texts, "xyzzy").stdout
    assert nothing == "  no result: bm25 finds no text that shares a word with it\n"


def test_questions_are_answered_from_a_file(texts: Path) -> None:
    reader = Path(__file__).parents[1] / "saved_models" / "answering"
    words = ("answer", "which river?", "--corpus", texts, "--reader", reader, *CPU)
    heading, _, row = succeeds(*words).stdout.splitlines()
    assert heading.split() == ["answer", "score", "passage", "line", "text"]
    assert "river" in row
    (document,) = map(json.loads, succeeds(*words, "--json", "--top-k", 3).stdout.splitlines())
    assert document["question"] == "which river?"
    scores = [one["score"] for one in document["answers"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    nothing = succeeds(words[0], "zzz", *words[2:]).stdout
    assert nothing == "  no answer: bm25 finds no text that shares a word with it\n"


@pytest.mark.long
def test_store_takes_texts_and_is_searched(world: World, tmp_path: Path) -> None:
    file, ids, store = tmp_path / "rows.jsonl", tmp_path / "ids.txt", tmp_path / "store"
    rows = [{"id": at, "text": f"the {noun}"} for at, noun in enumerate(("door", "river", "sea"))]
    file.write_text("\n".join(map(json.dumps, rows)))
    words = ("index", world.pretrained, store, *CPU, "--json")
    ids.write_text("1\nunknown\n\nabsent\n")
    fails(*words, "--delete", ids, says="is no store of texts. Create one: --add FILE")
    assert not store.exists()
    add = (*words, "--add", file, "--ids", "id", "--column", "text")
    added = {"added": 3, "replaced": 0, "deleted": 0, "texts": 3}
    assert json.loads(succeeds(*add).stdout) == added
    assert json.loads(succeeds(*add).stdout) == {**added, "added": 0}  # skipped
    deletion = succeeds(*words, "--delete", ids)
    counts = {"added": 0, "replaced": 0, "deleted": 1, "texts": 2}
    assert json.loads(deletion.stdout) == counts
    assert "ids to delete that are not in the store: 2, the first is 'unknown'" in deletion.stderr
    search = ("search", world.pretrained, store, "the sea", *CPU)
    result = succeeds(*search, "--json").stdout
    assert [hit["where"] for hit in json.loads(result)["hits"]] == ["2", "0"]
    assert succeeds(*search).stdout.split()[:3] == ["score", "id", "text"]
    file.write_text('{"id": 0, "text": " "}\n{"id": 2, "text": "the shore"}\n{"id": 3, "text": ""}')
    change = succeeds(*add)
    assert json.loads(change.stdout) == {"added": 0, "replaced": 1, "deleted": 1, "texts": 1}
    assert "texts that have become blank, and are deleted: 1, the first is '0'" in change.stderr
    file.write_text('{"id": 0, "text": "the door"}\n{"id": "0", "text": ""}')
    fails(*add, says="rows.jsonl:2: the id '0' occurs twice")
    file.write_text(json.dumps({"id": 0, "text": "the door"}))
    succeeds(*add)
    file.write_text(json.dumps({"id": " 7 ", "text": "spaces"}))
    succeeds(*add)
    ids.write_text(" 7 \n 0 \n")  # an id may have spaces, and so may a line
    assert json.loads(succeeds(*words, "--delete", ids).stdout)["deleted"] == 2
    file.write_text(json.dumps({"id": 1.5, "text": "a number"}))
    fails(*add, says="1.5 (column 'id') is no id. Ids are texts or whole numbers")
    reader = Path(__file__).parents[1] / "saved_models" / "answering"
    answer = ("answer", "the sea?", "--corpus", store, "--reader", reader, *CPU)
    fails(*answer, says="Give the model that it was made with (answer: --retriever MODEL)")
    fails(*words, "--ids", "id", says="--ids needs --add FILE", status=2)
    fails(*words, "--delete", ids, "--column", "id", says="--column needs --add FILE", status=2)
    ids.write_bytes("é\n".encode("latin-1"))
    fails(*words, "--delete", ids, says="latin-1")
    deletion = succeeds(*words, "--delete", ids, "encoding=latin-1")
    assert "not in the store: 1, the first is 'é'" in deletion.stderr
    fails(*words, "--delete", "absent", says="no such file")
    other = ("index", world.pretrained, tmp_path, *CPU, "--add", file)
    fails(*other, says="is no store of texts. Choose a directory that is new or empty")
