"""Every format that is read, changed at random: one line of error or a correct result."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..cli.conftest import World
from . import processes
from .commands import _parts
from .conftest import SEED, tries
from .mutate import read_many

pytestmark = pytest.mark.slow

FAMILIES = Path(__file__).parents[1] / "saved_models"


# --- Readers: each is given a folder, one of whose files was changed


def _only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def corpus(folder: Path) -> None:
    from bertworks.data.documents import read_documents

    for document in read_documents([str(_only(folder))]):
        assert isinstance(document.text, str)


def table(folder: Path) -> None:
    from bertworks.data.tables import read_rows

    for row in read_rows(_only(folder)):
        assert row is not None


def texts(folder: Path) -> None:
    from bertworks.data.text_inputs import read_texts

    for _, text in read_texts(_only(folder)):
        assert isinstance(text, str)


def exclusion(folder: Path) -> None:
    from bertworks.data.overlap import SharedSequences

    SharedSequences([_only(folder)])


def model(folder: Path) -> None:
    import bertworks as bw

    bw.load(folder, device="cpu").embed(["a door", "was opened"])


def prepared_corpus(folder: Path) -> None:
    from bertworks.data.shards import Corpus

    Corpus.open(folder, verify=True)
    loaded_corpus = Corpus.open(folder)
    loaded_corpus.load_tokenizer()
    for number in range(len(loaded_corpus)):
        loaded_corpus.document(number)


def vectors(folder: Path) -> None:
    from bertworks.inference.merging import merge

    kind = next(path.suffix for path in folder.glob("2.*") if path.suffix != ".json")
    out = folder.with_name(f"merged{kind}")
    out.unlink(missing_ok=True)
    merge([folder / f"{number}{kind}" for number in (1, 2)], out)


def corpus_parts(folder: Path) -> None:
    from bertworks.inference.merging import merge

    out = folder.with_name("merged")
    shutil.rmtree(out, ignore_errors=True)
    merge([folder / f"{number}.corpus" for number in (1, 2)], out)


def run_directory(folder: Path) -> None:
    from bertworks.reports import charts
    from bertworks.reports.report import write_report
    from bertworks.runs.run_directory import read_run
    from bertworks.training.checkpoint import load_newest

    charts.can_draw = lambda: False
    load_newest(folder / "checkpoints")
    read_run(folder).outcome()
    write_report(folder)


def grid(folder: Path) -> None:
    from bertworks.tuning.results import GridResult

    found = GridResult.read(folder)
    found.rows()
    assert found.best.directory


def recipe(folder: Path) -> None:
    from bertworks.training.recipe import read_recipe

    read_recipe(_only(folder), ["data=nowhere"])


def index(folder: Path) -> None:
    from bertworks.analysis.retrieval.index import Index
    from bertworks.loading import load

    where = json.loads((folder / "where.json").read_text())
    Index.open(load(where["model"], device="cpu"), where["data"], folder / "index").search("a door")


def answers(folder: Path) -> None:
    from bertworks.analysis.scoring import score

    score("answering", str(folder / "squad.json"), predictions=folder / "answers.json")


# --- What is read: a reader, and files


def _squad() -> str:
    context = "The river was painted by the garden."
    questions = [
        {"id": "a", "question": "What was?", "answers": [{"text": "river", "answer_start": 4}]},
        {"id": "b", "question": "Who?", "answers": [], "is_impossible": True},
    ]
    return json.dumps(
        {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    )


def _parquet(path: Path, rows: list[dict[str, object]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)


def make_cases(world: World, root: Path) -> dict[str, tuple[str, Path, str]]:
    """By a name: the reader, the folder that it reads, and the file that is changed there."""
    cases: dict[str, tuple[str, Path, str]] = {}

    def add(name: str, reader: str, content: bytes | str | None = None) -> Path:
        folder = root / f"{reader} {name}"
        folder.mkdir(parents=True)
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        cases[f"{reader} {name}"] = (reader, folder, name)
        return folder / name

    plain, rows = world.corpus.read_bytes()[:2000], world.train.read_bytes()[:1500]
    rows = rows[: rows.rfind(b"\n") + 1]
    tree = [json.loads(line) for line in rows.splitlines()]
    wiki = '<doc id="1" url="u" title="t">\nt\n\nSome text.\nMore.\n</doc>\n' * 5
    fields = [(row["text"], row["label"]) for row in tree]
    zst = pa.compress(plain, "zstd", asbytes=True)
    conll = "-DOCSTART- O\n\nthe O\nriver B-PLACE\nbank I-PLACE\n\na O\ndoor O\n\n" * 3
    for name, content in (
        *(
            ("a.txt", plain),
            ("a.wiki", wiki),
            ("a.jsonl", rows),
            ("b.txt.gz", gzip.compress(plain)),
        ),
        *(("b.txt.zst", zst), ("c.jsonl.gz", gzip.compress(rows))),
    ):
        add(name, "corpus", content)
    _parquet(add("a.parquet", "corpus"), tree)
    for name, content in (
        ("a.tsv", "text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in fields)),
        ("a.csv", "text,label\n" + "".join(f'"{t}, ""x""",{label}\n' for t, label in fields)),
        *(("a.jsonl", rows), ("a.json", json.dumps(tree)), ("a.conll", conll)),
        *(("squad.json", _squad()), ("a.csv.gz", gzip.compress(b"text,label\nab,c\nd,e\n" * 20))),
        (
            "a.conllu",
            "1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\triver\t_\tNOUN\t_\t_\t0\t_\t_\t_\n\n" * 5,
        ),
    ):
        add(name, "table", content)
    _parquet(add("a.parquet", "table"), tree)
    add("a.txt", "texts", plain)
    long = json.dumps({"text": " ".join(f"word{at}" for at in range(40))})
    add("a.jsonl", "exclusion", f"{long}\n" * 3)
    add("a.yaml", "recipe", (Path(__file__).parents[2] / "recipes" / "tiny.yaml").read_bytes())
    for source, reader in (
        *((world.data, "prepared_corpus"), (world.classifier, "run_directory")),
        *((world.vocab.with_name("grid"), "grid"), (world.classifier / "model", "model")),
        *((FAMILIES / name, "model") for name in _FAMILIES),
        (world.vocab.with_name("other formats"), "model"),
        (world.vocab.with_name("tensorflow"), "model"),
        *((_without_json(FAMILIES / name, root), "model") for name in _FAMILIES[:2]),
        (_without_json(world.classifier / "model", root), "model"),
    ):
        files = sorted(path for path in source.rglob("*") if path.is_file())
        for file in files:
            name = file.relative_to(source).as_posix()
            skip = reader == "run_directory" and name.split("/")[0] in ("model", "report.html")
            if skip or (reader == "grid" and name != "grid.json") or "tensorboard" in name:
                continue
            if reader == "run_directory" and "step-00000001" in name and len(files) > 30:
                continue
            cases[f"{source.name} {name}"] = (reader, source, name)
    for kind, reader in (
        *((kind, "vectors") for kind in ("npy", "parquet", "tsv")),
        ("corpus", "corpus_parts"),
    ):
        _parts(world, kind)
        source = world.vocab.with_name(f"parts-{kind}")
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            name = file.relative_to(source).as_posix()
            if name.startswith("1"):
                cases[f"parts {name}"] = (reader, source, name)
    folder = root / "index"
    (folder / "index").mkdir(parents=True)
    where = {"model": str(world.pretrained), "data": str(world.train)}
    (folder / "where.json").write_text(json.dumps(where))
    assert processes.call(index, folder) == 0
    for file in (folder / "index").iterdir():
        cases[f"index {file.name}"] = ("index", folder, f"index/{file.name}")
    folder = add("answers.json", "answers", '{"a": "river", "b": ""}').parent
    (folder / "squad.json").write_text(_squad())
    return cases


def _without_json(model: Path, root: Path) -> Path:
    """A model whose tokenizer is read from the files that others write."""
    copy = root / f"{model.name} without tokenizer.json"
    shutil.copytree(model, copy)
    (copy / "tokenizer.json").unlink()
    return copy


_FAMILIES = (
    *("albert-choice", "camembert-classification", "roberta-classification", "retrieval"),
    *("modernbert-classification", "openai-gpt-classification", "sentence-encoder", "tagging"),
)


def other_formats(world: World) -> None:
    """A model as others write it: pickles of two kinds, and an index of them."""
    import torch
    from safetensors.torch import load_file

    folder = world.vocab.with_name("other formats")
    shutil.copytree(world.pretrained / "model", folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.bin": names[::2], "b.bin": names[1::2]}
    for file, held in parts.items():
        zipped = {"_use_new_zipfile_serialization": file == "a.bin"}
        torch.save({name: weights[name].clone() for name in held}, folder / file, **zipped)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.fixture(scope="session")
def sources(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, Path, str]]:
    root = tmp_path_factory.mktemp("sources")
    assert processes.call(other_formats, world) == 0
    out = world.vocab.with_name("tensorflow")
    convert = ("convert", world.pretrained, out, "--to", "tensorflow")
    assert processes.run(convert, root / "log").status == 0
    tables = ("--train", world.train, "--dev", world.dev, "--out", world.vocab.with_name("grid"))
    outcome = processes.run(
        (
            *("finetune", "classification", "--model", world.pretrained, *tables, "epochs=1"),
            *("max_seq_length=32", "--grid", "learning_rate=1e-3,1e-4"),
        ),
        root / "log",
    )
    assert outcome.status == 0, outcome.stderr
    return make_cases(world, root)


def _tries_of(sources: dict[str, tuple[str, Path, str]], full: int) -> Iterator[tuple[str, int]]:
    """How often each file is changed."""
    for name in sources:
        yield name, max(20, full // len(sources))


def test_changed_files_are_refused_or_read(
    sources: dict[str, tuple[str, Path, str]],
    tmp_path: Path,
    draw: random.Random,
    tally: Callable[..., None],
) -> None:
    faults = []
    for name, count in _tries_of(sources, tries(4000, 10**5)):
        reader, source, file = sources[name]
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        first = 0
        while first < count:
            process = processes.CONTEXT.Process(
                target=read_many,
                args=(reader, source, file, folder, f"{SEED} {name}", first, count),
            )
            process.start()
            processes.is_over(process)
            code, last = process.exitcode, count - 1
            if (
                code or code is None
            ):  # this try ended the process; the next process continues with the next try
                last = int((folder / "try").read_text())
                how = "more than 10 s" if code == -signal.SIGPROF else f"exit status {code}"
                faults.append((name, last, how))
            first = last + 1
        found = folder / "faults"
        lines = found.read_text().splitlines() if found.exists() else []
        faults += [(name, *json.loads(line)) for line in lines]
        ends = (folder / "ends").read_bytes() if (folder / "ends").exists() else b""
        tally(tried=count, refused=ends.count(b"E"), read=ends.count(b"."))
        shutil.rmtree(folder / "copy", ignore_errors=True)
    tally(faults=len(faults))
    shown = "\n".join(f"{name} #{number}: {what}" for name, number, what in faults[:40])
    assert not faults, f"{len(faults)} faults\n{shown}"
