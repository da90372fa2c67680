"""Makes the fixtures: what a commit of bertworks writes, and what came of it there.

    git worktree add ../then db463f6        # a tree whose src/ is the commit's; this folder into it
    OMP_NUM_THREADS=1 PYTHONPATH=src python -m tests.compatibility.make     # in it; minutes

They were made once, at the commit after which the folder is named, and are not made again: the
tests see to it that later versions load, resume and predict the same. This module therefore uses
that commit's internals, and later versions need not keep it running.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import bertworks as bw
from bertworks.checkpoints.families import FAMILIES
from bertworks.checkpoints.sentence import SentenceSettings
from bertworks.cli import app
from bertworks.inference.settings import (
    EmbedSettings,
    EngineSettings,
    GenerationSettings,
    TokenSettings,
)
from bertworks.settings import Settings
from bertworks.training.journal import RunDirectory
from bertworks.training.objective import with_geometry
from bertworks.training.recipe import read_recipe
from bertworks.training.recorder import Recorder
from bertworks.training.report import charts

from . import look, surface, texts, words
from .commands import KILLED_AT, RUNS

GEOMETRY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,  # or all vectors would be nearly the same, and correlations rounding
}
SMALL = {**GEOMETRY, "hidden_size": 8, "intermediate_size": 16, "max_position_embeddings": 32}
PRETRAIN: dict[str, Any] = {
    "data": "prepared",
    "steps": 20,
    "batch_size": 8,
    "phases": [{"max_seq_length": 32}],
    "optimizer": {"lr": 2e-2, "warmup": 2},
    "held_out": {"documents": 3, "sequences": 8},
    "eval_every": 100,
    "tensorboard": False,
}
FINETUNE: dict[str, Any] = {
    "max_seq_length": 32,
    "batch_size": 8,
    "epochs": 3,
    "learning_rate": 1e-2,
}
PREPARING = {"tokenizer": "vocab", "shard_bytes": 4000, "sentences": "lines", "seed": 5}
RECIPES = {
    **dict.fromkeys(("tiny", "mini", "small", "medium", "base", "large", "paper"), ()),
    "electra-small": (),
    "adapt": ("init_checkpoint=models/small", "phases=[{max_seq_length: 24}]"),
}


def check_source() -> None:
    """See that it is the commit's package that is imported, and not, say, an installed one."""
    top = Path(__file__).resolve().parents[2]
    assert Path(bw.__file__).resolve().is_relative_to(top / "src"), f"{bw.__file__}: set PYTHONPATH"
    git = ("git", "-C", str(top))
    changed = (*git, "diff", "--stat", COMMIT, "--", "src", "recipes")
    new = (*git, "ls-files", "-o", "--exclude-standard", "src")
    found = b"".join(subprocess.check_output(command) for command in (changed, new)).decode()
    assert not found, f"src/ is not {COMMIT}'s:\n{found}"


COMMIT = look.DIRECTORY.name


def main() -> None:
    """Make everything anew."""
    check_source()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"] = "1"
    charts.can_draw = lambda: False
    root = look.DIRECTORY
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    with look.working_in(root):
        make_corpora()
        with tempfile.TemporaryDirectory() as scratch:
            make_models(Path(scratch))
        make_vectors()
        make_runs()
        make_settings()
        write_json("conditions.json", look.conditions())
        write_json("libraries.json", look.libraries())
    for path in [*root.rglob(".lock"), *root.rglob("report.html")]:
        path.unlink()
    for path in [*root.rglob("tensorboard")]:  # its files are called by the machine
        shutil.rmtree(path)


# ----------------------------------------------------------------------------------------- corpora


def make_corpora() -> None:
    """The texts, a vocabulary, a prepared corpus, and one that was killed while it was prepared."""
    Path("corpus.txt").write_text(texts.corpus(), encoding="utf-8")
    texts.write_tables(Path("tables"))
    texts.write_glue(Path("glue"))
    run(("vocab", "corpus.txt", "--out", "vocab", "--size", "240"))
    run(prepare_words("prepared"))
    killed("preparing", lambda: prepare_half_way("preparing"))
    assert len(list(Path("preparing").glob("*.arrow"))) == 2, sorted(Path("preparing").iterdir())
    corpus = bw.Corpus.open("prepared")
    documents = [[part.tolist() for part in corpus.document(number)] for number in range(4)]
    Path("expected").mkdir()
    write_json("expected/documents.json", {"count": corpus.num_documents, "first": documents})
    with tempfile.TemporaryDirectory() as scratch:
        prepare_half_way(scratch, stop=False)
        shutil.copy(f"{scratch}/manifest.json", "expected/preparing.json")


def prepare_words(out: str) -> tuple[str, ...]:
    """The command that `prepared` was made by."""
    return (
        *("prepare", "corpus.txt", "--tokenizer", "vocab", "--out", out),
        *("--workers", "1", "--spans", "rules", "--drop-duplicates"),
    )


def prepare_half_way(out: str, *, stop: bool = True) -> None:
    """Prepare in small shards, and die after the second."""

    def progress(now: Any) -> None:
        if stop and now.shards == 2:
            die()

    bw.prepare("corpus.txt", out=out, progress=progress, **PREPARING)


# ------------------------------------------------------------------------------------------ models


def make_models(scratch: Path) -> None:  # noqa: PLR0915 - one statement a model
    """A saved model of every task and variant, and what each answers."""
    made = Models(scratch)
    rows = {
        name: list(map(json.loads, Path(f"tables/{name}-dev.jsonl").read_text().splitlines()))
        for name in ("single", "pair", "several", "scored", "words", "choice", "query")
    }
    # The threshold of no answer is the score of a row of dev: of that row rounding would decide.
    squad = json.loads(Path("tables/squad2-train.json").read_text())
    unseen = "tables/squad2-train.json"
    asked = [
        {"context": part["context"], "question": part["qas"][0]["question"]}
        for part in squad["data"][0]["paragraphs"]
    ]
    masked = {
        "masks": "Anna Berg opened the [MASK] near the river .",
        "rows": [{"text": "Ben drew the [MASK] [MASK] Rome."}, {"text": "the door"}],
    }
    both = {**masked, "pair": ["Ben drew the door.", "Clara Holm lost the train."]}
    prompts = {"prompts": ["the river", "Ben"], "rows": [{"text": "the door in Rome"}]}

    # Pre-training.
    made.pretrained("small", both, model=SMALL)
    made.pretrained("pretraining", both, model=GEOMETRY)
    plain = {"format": "full-sentences"}
    made.pretrained("masked-lm", masked, model=GEOMETRY, instances=plain)
    causal = {**GEOMETRY, "attention": "causal"}
    made.pretrained("causal", prompts, model=causal, instances=plain)
    student = {**GEOMETRY, "num_hidden_layers": 1}
    distillation = {"teacher": "models/pretraining", "cosine_weight": 0.5}
    made.pretrained("distilled", both, model=student, distillation=distillation)
    electra = {**SMALL, "family": "electra", "embedding_size": 6}
    made.pretrained(
        "electra",
        {"rows": [{"text": "Ben drew the river night."}]},
        model=electra,
        instances=plain,
        replaced_tokens={"generator_share": 0.5},
    )
    shutil.copytree(scratch / "electra" / "generator", "models/electra-generator")
    made.look("electra-generator", masked)

    # Tasks.
    single, pairs = {"rows": rows["single"][:4]}, {"rows": rows["pair"][:4]}
    made.finetuned("classification", "classification", "single", single)
    made.finetuned("pairs", "classification", "pair", pairs, both_orders=True)
    windows = {"truncation": "windows", "max_seq_length": 10, "stride": 3, "window_pooling": "max"}
    made.finetuned("windows", "classification", "single", single, **windows)
    made.finetuned(
        "mean-pooled", "classification", "single", single, classifier_pooling="mean", dropout=0.0
    )
    several = {"rows": rows["several"][:4]}
    made.finetuned("several-labels", "classification", "several", several, multi_label=True)
    made.finetuned("lora", "classification", "pair", pairs, lora_rank=2)
    made.finetuned("student", "classification", "single", single, teacher="models/classification")
    scored = {"rows": rows["scored"][:4]}
    made.finetuned(
        "regression", "regression", "scored", scored, classifier_pooling="mean", epochs=8
    )
    tagged = {"rows": rows["words"][:4]}
    plain_text = {"rows": ["Anna Berg opened the door in New York", "the river"]}
    made.finetuned("tagging", "tagging", "words.conll", plain_text)
    made.finetuned("document-context", "tagging", "words", tagged, document_context=True)
    made.finetuned("free-tags", "tagging", "words", tagged, scheme="bioes", decoding="free")
    made.finetuned("answering", "answering", "squad1", {"rows": asked[:4]}, stride=8)
    open_questions = {"rows": asked[:4], "table": unseen}
    made.finetuned("unanswerable", "answering", "squad2", open_questions, stride=8, epochs=6)
    made.finetuned("choice", "choice", "choice", {"rows": rows["choice"][:4]})
    queries = {"rows": rows["query"][:4]}
    made.finetuned("retrieval", "retrieval", "query", queries, pooling="mean")

    # Encoders.
    tokenizer = bw.Tokenizer.load("vocab")
    bare = bw.Model.fresh(geometry("bert", tokenizer), tokenizer, seed=1)
    bare.save("models/encoder")
    made.look("encoder", {})
    how = SentenceSettings(pooling="cls", normalize=True, max_seq_length=12)
    bw.Model(tokenizer, None, bare.network, sentence=how).save("models/sentence-encoder")
    made.look("sentence-encoder", {})

    # Families.
    corpus = Path("corpus.txt").read_text(encoding="utf-8")
    kinds = {
        "roberta": byte_level(scratch / "roberta-files", corpus),
        "modernbert": modernbert(scratch / "modernbert-files", corpus),
        "xlm-roberta": sentencepieces(scratch / "xlm-files", "sentencepiece.bpe.model"),
        "camembert": sentencepieces(
            scratch / "camembert-files", "sentencepiece.bpe.model", "camembert"
        ),
        "albert": sentencepieces(scratch / "albert-files", "spiece.model"),
        "openai-gpt": end_of_word(scratch / "gpt-files", corpus),
        **dict.fromkeys(("distilbert", "electra", "ernie"), tokenizer),
    }
    for family, task, table, question in (
        ("roberta", "classification", "pair", pairs),
        ("distilbert", "classification", "single", single),
        ("distilbert", "regression", "scored", scored),
        ("albert", "choice", "choice", {"rows": rows["choice"][:4]}),
        ("electra", "tagging", "words", tagged),
        ("electra", "classification", "single", single),
        ("ernie", "answering", "squad2", open_questions),
        ("modernbert", "classification", "single", single),
        ("xlm-roberta", "tagging", "words", tagged),
        ("camembert", "classification", "single", single),
        ("openai-gpt", "classification", "pair", pairs),
    ):
        begin = bw.Model.fresh(geometry(family, kinds[family]), kinds[family], seed=2)
        more = {"lm_weight": 0.5, "both_orders": True} if family == "openai-gpt" else {}
        made.finetuned(f"{family}-{task}", task, table, question, model=begin, epochs=2, **more)
    for family, format_, question in (
        ("roberta", "full-sentences", "Ben drew the<mask> in Rome."),
        ("albert", "sentence-order", "Ben drew the [MASK] in Rome."),
        ("modernbert", "full-sentences", "Ben drew the[MASK] in Rome."),
        ("openai-gpt", "full-sentences", None),
    ):
        data = scratch / f"{family}-data"
        bw.prepare("corpus.txt", tokenizer=kinds[family], out=data)
        config = geometry(family, kinds[family]).model_dump(exclude={"vocab_size"})
        asked_of = {"masks": question} if question else {"prompts": prompts["prompts"]}
        if format_ == "sentence-order":
            asked_of = {**asked_of, "pair": ["the door", "the train"]}
        made.pretrained(
            f"{family}-pretraining",
            asked_of,
            model=config,
            data=str(data),
            instances={"format": format_},
            steps=10,
        )


class Models:
    """Trains models in a scratch folder, and keeps what is saved of them."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        Path("models").mkdir()
        Path("expected/models").mkdir()

    def pretrained(self, name: str, asked: dict[str, Any], **settings: Any) -> None:
        """Pre-train a model and keep it."""
        bw.pretrain(out=self.scratch / name, **{**PRETRAIN, **settings})
        self._keep(name, asked)

    def finetuned(
        self,
        name: str,
        task: str,
        table: str,
        asked: dict[str, Any],
        *,
        model: str | bw.Model = "models/pretraining",
        **settings: Any,
    ) -> None:
        """Fine-tune a model, keep it, and have it evaluated too."""
        files = [f"tables/{table}"] * 2
        if "." not in table:
            suffix = "json" if table.startswith("squad") else "jsonl"
            files = [f"tables/{table}-{part}.{suffix}" for part in ("train", "dev")]
        bw.finetune(
            model,
            task,
            train=files[0],
            dev=files[1],
            out=self.scratch / name,
            **{**FINETUNE, **settings},
        )
        self._keep(name, {"table": files[1], **asked})

    def _keep(self, name: str, asked: dict[str, Any]) -> None:
        shutil.copytree(self.scratch / name / "model", Path("models") / name)
        self.look(name, asked)

    def look(self, name: str, asked: dict[str, Any]) -> None:
        """Record what a model answers."""
        directory = Path("models") / name
        print(name, flush=True)
        found = look.describe(directory, asked)
        write_json(f"expected/models/{name}.json", {"asked": asked, "found": found})
        bw.load(directory, device="cpu").save(self.scratch / "again")
        for file in sorted(directory.rglob("*")):
            again = self.scratch / "again" / file.relative_to(directory)
            same = file.is_dir() or file.read_bytes() == again.read_bytes()
            assert same, f"{file} is saved differently again"
        shutil.rmtree(self.scratch / "again")


def geometry(family: str, tokenizer: Any) -> bw.EncoderConfig:
    """A small geometry of a family."""
    known = FAMILIES[family].read_config({}, where=family).model_dump()
    known |= {**SMALL, "max_position_embeddings": 34, "vocab_size": tokenizer.vocab_size}
    if known["embedding_size"] is not None:
        known["embedding_size"] = 6
    if family == "ernie":
        known["task_type_vocab_size"] = 3
    if family == "modernbert":
        known["local_attention"] = 8
    if family == "openai-gpt":
        known["intermediate_size"] = 4 * SMALL["hidden_size"]
    return bw.EncoderConfig(**known)


# -------------------------------------------------------------------------------------- tokenizers


def byte_level(folder: Path, corpus: str) -> bw.Tokenizer:
    """RoBERTa's kind."""
    folder.mkdir()
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(corpus.splitlines(), trainer)
    library.model.save(str(folder))
    return bw.Tokenizer.load(folder)


def modernbert(folder: Path, corpus: str) -> bw.Tokenizer:
    """ModernBERT's kind: bytes, composed characters, BERT's special pieces."""
    folder.mkdir()
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.normalizer = normalizers.NFC()
    library.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(corpus.splitlines(), trainer)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:0 [SEP]:0",
        special_tokens=[(piece, library.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    library.save(str(folder / "tokenizer.json"))
    return bw.Tokenizer.load(folder)


def sentencepieces(folder: Path, name: str, family: str = "") -> bw.Tokenizer:
    """ALBERT's, XLM-RoBERTa's and CamemBERT's kind."""
    import sentencepiece

    folder.mkdir()
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    special = {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], **ids}  # as ALBERT's
    with (folder / name).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            input="corpus.txt",
            model_writer=file,
            vocab_size=120,
            hard_vocab_limit=False,
            model_type="unigram",
            normalization_rule_name="identity",  # the others' tables take 300 KB
            num_threads=1,
            minloglevel=2,
            **(special if name == "spiece.model" else {}),
        )
    if family or name != "spiece.model":
        config = {"model_type": family or "xlm-roberta"}
        (folder / "config.json").write_text(json.dumps(config))
    return bw.Tokenizer.load(folder)


def end_of_word(folder: Path, corpus: str) -> bw.Tokenizer:
    """The first GPT's kind."""
    folder.mkdir()
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=140, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    library.train_from_iterator(corpus.splitlines(), trainer)
    library.model.save(str(folder))
    return bw.Tokenizer.load(folder)


# -------------------------------------------------------------------------------------------- runs


def make_runs() -> None:
    """Each run half-way, killed with SIGKILL, and what came of it where it was left alone."""
    Path("runs").mkdir()
    Path("expected/runs").mkdir()
    kept: dict[str, Any] = {}
    for name, command in RUNS.items():
        print(name, flush=True)
        where = Path("runs") / name
        with tempfile.TemporaryDirectory() as scratch:
            with look.recorded_batches() as batches:
                run(command)
            where.rename(Path(scratch) / "whole")
            whole = Path(scratch) / "whole"
            killed(name, lambda: run_half_way(command, KILLED_AT.get(name, 8)))  # noqa: B023
            half_way = Path(scratch) / "half-way"
            shutil.copytree(where, half_way, symlinks=True)
            with look.recorded_batches() as resumed:
                run(command)
            assert batches[len(batches) - len(resumed) :] == resumed, "other batches"
            look.check_same(look.outcome(whole), look.outcome(where), rel=0)
            assert look.models(whole) == look.models(where)
            state = look.last_state(whole)
            look.check_same(state, look.last_state(where), rel=0)
            shutil.rmtree(where)
            shutil.copytree(half_way, where, symlinks=True)
            expected = {
                "batches": batches,
                "resumed": len(resumed),
                "files": look.outcome(whole),
                "state": state,
                "models": look.models(whole),
            }
            write_json(f"expected/runs/{name}.json", expected)
        kept[name] = list(command)
    kept_also = {"prepared": prepare_words("prepared")}
    write_json("commands.json", {**kept, **{k: list(v) for k, v in kept_also.items()}})


def run_half_way(command: Sequence[str], step: int) -> None:
    """Run a command line, and die in a step, counted over all its runs."""
    done = 0
    stepped = Recorder.stepped

    def counted(self: Recorder, *args: Any, **facts: Any) -> None:
        nonlocal done
        done += 1
        if done == step:
            die()
        stepped(self, *args, **facts)

    Recorder.stepped = counted  # type: ignore[method-assign]
    run(command)


def make_vectors() -> None:
    """Vectors of texts, and of words, killed in the third window; and the whole."""
    lines = Path("corpus.txt").read_text(encoding="utf-8").split("\n")
    Path("texts.txt").write_text("\n".join(filter(None, lines))[:4000] + "\n", encoding="utf-8")
    Path("vectors").mkdir()
    Path("expected/vectors").mkdir()
    for name, (verb, settings) in VECTORS.items():

        def write(out: Path, progress: Any = None) -> None:
            model = bw.load("models/small", device="cpu")
            getattr(model, verb)(out, "texts.txt", progress=progress, **settings)  # noqa: B023

        def half_way() -> None:
            def progress(rows: int, total: int) -> None:
                if rows > 40:
                    die()

            write(Path("vectors") / name, progress)  # noqa: B023

        write(Path("expected/vectors") / name)
        killed(name, half_way)
    write_json("vectors.json", {name: list(how) for name, how in VECTORS.items()})


VECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "texts.npy": ("embed_to", {"pooling": "mean", "layers": [-1], "engine": {"window_rows": 16}}),
    "texts.parquet": ("embed_to", {"pooling": "max", "engine": {"window_rows": 16}}),
    "words.parquet": ("features_to", {"of": "words", "engine": {"window_rows": 16}}),
}


# ---------------------------------------------------------------------------------------- settings


def make_settings() -> None:
    """The recipes as resolved, a `key=value` word of each setting, and the names people use."""
    Path("settings").mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        for name, more in RECIPES.items():
            settings = with_geometry(read_recipe(name, ["data=prepared", *more]))
            RunDirectory.open(Path(scratch) / name, settings).close()
            shutil.copy(Path(scratch) / name / "settings.yaml", f"settings/{name}.yaml")
    write_json("recipes.json", {name: list(more) for name, more in RECIPES.items()})
    write_json("words.json", words.every_setting())
    write_json("preparing.json", PREPARING)
    write_json("calls.json", {"calls": list(calls())})
    Path("options.txt").write_text("\n".join(surface.options()) + "\n", encoding="utf-8")
    Path("api.txt").write_text("\n".join(surface.names()) + "\n", encoding="utf-8")


def calls() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A call of each method of `Model` with each setting that it takes by name, at its default."""
    engine = {"engine": dict(defaults(EngineSettings))}
    yield from (("small", "embed", {name: value}) for name, value in defaults(EmbedSettings))
    yield ("small", "embed", engine)
    yield from (("small", "embed_to", {name: value}) for name, value in defaults(EmbedSettings))
    yield ("small", "embed_to", engine)
    yield from (("small", "features_to", {name: value}) for name, value in defaults(TokenSettings))
    yield from (("causal", "generate", {n: value}) for n, value in defaults(GenerationSettings))
    yield ("causal", "generate", {"precision": "fp32"})
    for method in ("predict", "evaluate"):
        made = defaults(EngineSettings)
        yield from (("classification", method, {name: value}) for name, value in made)
        yield ("classification", method, {"header": None})


def defaults(schema: type[Settings]) -> Iterator[tuple[str, Any]]:
    """Each setting and its default, as JSON can hold it."""
    yield from schema().model_dump(mode="json").items()


# ----------------------------------------------------------------------------------------- helpers


def run(command: Sequence[str]) -> None:
    """Run a command line in this process."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(command))
    if result.exit_code:
        sys.exit(f"{' '.join(command)}\n{result.output}\n{result.exception!r}")


def killed(name: str, work: Callable[[], None]) -> None:
    """Do work in a process of its own, which has to end by SIGKILL."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (
        f"{name} was not killed"
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_json(file: str, values: Any) -> None:
    """Write what is recorded, a line for each entry of the outermost two levels."""
    Path(file).write_text(dumped(values) + "\n", encoding="utf-8")


def dumped(values: Any, depth: int = 2) -> str:
    if depth == 0 or not isinstance(values, dict) or not values:
        return json.dumps(values, ensure_ascii=False)
    lines = (f"{json.dumps(key)}: {dumped(value, depth - 1)}" for key, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    main()
