"""Every verb, as its help shows it: what it prints and which files it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import bertworks as bw
from bertworks.nn.config import EncoderConfig
from bertworks.settings.verbs import VERBS
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask

from .conftest import CPU, SMALL, World, bertworks, fails, json_lines_of, json_of, succeeds


def test_every_help_ends_with_examples_of_its_verb() -> None:
    overview = bertworks("--help").stdout
    listed = overview.partition("Commands:\n")[2].splitlines()[: len(VERBS)]
    assert [line.split()[0] for line in listed] == list(VERBS)
    for verb in VERBS:
        text = bertworks(verb, "--help").stdout
        heading, _, examples = text.partition("  Example")
        num_examples = examples.count(f"bertworks {verb}")
        assert heading and num_examples, verb
        assert examples.startswith("s:\n" if num_examples > 1 else ":\n"), verb
        assert max(map(len, text.splitlines())) <= 80, verb
        option_names = {word for word in examples.split() if word.startswith("--")}
        allowed = {"--settings"} if verb == "settings" else set()  # in an example of finetune
        assert option_names - allowed <= set(heading.split()), verb


def test_vocab_is_reproducible(world: World, tmp_path: Path) -> None:
    result = succeeds("vocab", world.corpus, "--out", tmp_path / "v", "--size", 250)
    assert "250" in result.stdout
    again = (tmp_path / "v" / "vocab.txt").read_bytes()
    assert again == (world.vocab / "vocab.txt").read_bytes()


def test_vocab_reports_a_smaller_vocabulary(world: World, tmp_path: Path) -> None:
    result = succeeds("vocab", world.corpus, "--out", tmp_path / "v", "--size", 9000, "--cased")
    assert "fewer than 9,000" in result.stdout
    assert "The" in (tmp_path / "v" / "vocab.txt").read_text().splitlines()


def test_vocab_leaves_out_rare_characters(world: World, tmp_path: Path) -> None:
    sizes = []
    for share in (0.8, 1):
        words = ("vocab", world.corpus, "--out", tmp_path / f"{share}", "size=250")
        succeeds(*words, f"character_coverage={share}")
        vocabulary = (tmp_path / f"{share}" / "vocab.txt").read_text().splitlines()
        sizes.append(sum(len(piece) == 1 for piece in vocabulary))
    assert sizes[0] < sizes[1]


def test_vocab_reports_skipped_lines_and_duplicates(world: World, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(
        world.corpus.read_bytes() + b"a broken \xff line\n\n" + world.corpus.read_bytes()
    )
    result = succeeds(
        *("vocab", bad, "--out", tmp_path / "v", "--size", 250, "--skip-bad", "--drop-duplicates")
    )
    assert "skipped 1 × broken UTF-8" in result.stdout
    assert "documents dropped" in result.stdout


def test_prepare_again_has_nothing_to_do(world: World) -> None:
    result = succeeds("prepare", world.corpus, "--tokenizer", world.vocab, "--out", world.data)
    assert "documents   12" in result.stdout
    assert "nothing to do" in result.stdout


@pytest.mark.long
def test_spans_are_masked_as_units(world: World, tmp_path: Path) -> None:
    corpus, options = tmp_path / "corpus.jsonl", ("--tokenizer", world.vocab, "--workers", 1)
    texts = [" ".join(part.split("\n")) for part in world.corpus.read_text().strip().split("\n\n")]
    rows = [{"text": text, "spans": [[0, 8], [text.index("by"), len(text)]]} for text in texts]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "prepared"
    result = succeeds("prepare", corpus, *options, "--out", out, "--spans", "given")
    assert "spans       24" in result.stdout
    words = (*SMALL, f"data={out}", "masking.unit=knowledge", *CPU, "--out", tmp_path / "run")
    result = succeeds("pretrain", "tiny", *words)
    assert "mlm_loss" in result.stdout
    rows[3]["spans"] = [[5, 1]]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fails(
        *("prepare", corpus, *options, "--out", tmp_path / "bad", "--spans", "given"),
        says="corpus.jsonl:4: the span [5, 1] ends before it begins",
    )


@pytest.mark.long
def test_pretraining_continues_with_domain_text_and_added_words(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("zebu\n")
    extended_model, data = tmp_path / "grown", tmp_path / "data"
    succeeds("add-tokens", world.pretrained, tmp_path / "words.txt", "--out", extended_model)
    succeeds(
        *("prepare", world.corpus, "--tokenizer", extended_model, "--out", data, "--workers", 1)
    )
    own = [word for word in SMALL if not word.startswith("model.")]
    words = ("pretrain", "adapt", *own, f"data={data}", *CPU, "--out", tmp_path / "run")
    result = succeeds(*words, f"init_checkpoint={extended_model}")
    assert "starts from" in result.stderr
    assert "not used: cls.seq_relationship.bias" in result.stderr
    assert "starts from" not in bertworks(*words, f"init_checkpoint={extended_model}").stderr
    fails(
        *(*words[:-1], tmp_path / "other", f"init_checkpoint={world.pretrained}"),
        says="was prepared with another tokenizer",
    )


@pytest.mark.long
def test_pretrain_again_is_done_at_once(world: World) -> None:
    journal = (world.pretrained / "journal.jsonl").read_bytes()
    words = ("pretrain", "tiny", *SMALL, f"data={world.data}", *CPU, "--out", world.pretrained)
    result = succeeds(*words)
    assert "mlm_loss" in result.stdout
    assert (world.pretrained / "report.html").is_file()
    assert (world.pretrained / "journal.jsonl").read_bytes() == journal


def test_finetune_writes_a_model_and_a_report(world: World) -> None:
    assert (world.classifier / "model" / "model.safetensors").is_file()
    assert (world.classifier / "report.html").is_file()


@pytest.mark.long
def test_finetune_trains_every_run_of_a_grid_once(world: World, tmp_path: Path) -> None:
    out = tmp_path / "grid"
    words = (
        *("finetune", "classification", "--model", world.pretrained, "--train", world.train),
        *("--dev", world.dev, "--out", out, *CPU, "max_seq_length=32", "epochs=1"),
        *("--grid", "learning_rate=1e-3,1e-2", "--seeds", "2"),
    )
    result = succeeds(*words)
    rows = [line.split() for line in result.stdout.splitlines()[2:4]]
    assert {row[0] for row in rows} == {"0.001", "0.01"}
    assert [row[-1] for row in rows] == ["2", "2"]
    assert max(map(len, result.stdout.splitlines()[:4])) <= 80
    assert "4/4 · accuracy" in result.stderr
    again = bertworks(*words)
    assert again.stdout == result.stdout
    assert "/4 ·" not in again.stderr
    assert json_of("predict", out, "the river rose")["prediction"]["label"] in ("dry", "wet")


@pytest.mark.long
def test_glue_scores_the_tasks_of_a_folder(world: World, tmp_path: Path) -> None:
    data, out = tmp_path / "glue", tmp_path / "out"
    (data / "RTE").mkdir(parents=True)
    lines = ["index\tsentence1\tsentence2\tlabel"]
    for number in range(8):
        label = ("entailment", "not_entailment")[number % 2]
        lines.append(f"{number}\tthe door was opened\tthe river\t{label}")
    for name in ("train", "dev"):
        (data / "RTE" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    words = ("glue", "--model", world.pretrained, "--data", data, "--out", out, *CPU)
    result = succeeds(*words, "max_seq_length=32", "epochs=1", "label_smoothing=0.1")
    assert ["RTE", "accuracy", "50.0", "66.4", "70.1"] in [
        line.split() for line in result.stdout.splitlines()
    ]
    assert "missing: CoLA (no folder)" in result.stdout
    assert "glue.md" in result.stdout
    assert "| RTE | accuracy | 50.0 |" in (out / "glue.md").read_text()


def test_evaluate_shows_metrics_as_table_and_json(world: World) -> None:
    table = succeeds("evaluate", world.classifier, "--data", world.dev)
    assert "accuracy" in table.stdout
    values = json_of("evaluate", world.classifier, "--data", world.dev)
    assert values["rows"] == 10
    assert f"{values['accuracy']:.4f}" in table.stdout


def test_evaluate_writes_a_page(world: World, tmp_path: Path) -> None:
    page = tmp_path / "errors.html"
    result = succeeds("evaluate", world.classifier, "--data", world.dev, "--report", page)
    assert re.search(r"calibration +error \d+\.\d% \(mean confidence", result.stdout)
    assert re.search(r" uncalibrated +error \d+\.\d%, loss \d+\.\d+\n", result.stdout)
    assert "report" in result.stdout
    lines = [line for line in result.stdout.splitlines() if str(page) not in line]
    assert max(map(len, lines)) <= 80
    assert "Calibration" in page.read_text(encoding="utf-8")


def test_predict_writes_a_line_for_each_text(world: World) -> None:
    first, second = json_lines_of("predict", world.classifier, "the river rose", "a door")
    assert (first["text"], second["text"]) == ("the river rose", "a door")
    assert set(first["prediction"]["probabilities"]) == {"dry", "wet"}
    assert sum(first["prediction"]["probabilities"].values()) == pytest.approx(1)


def test_predict_warns_of_truncated_rows(world: World) -> None:
    result = succeeds("predict", world.classifier, "the river rose", "door " * 200, "--json")
    assert len(result.stdout.splitlines()) == 2
    (printed,) = result.stderr.splitlines()
    assert printed.startswith("warning: 1 of 2 rows were too long for the model: 1")


def test_predict_reads_lines_of_standard_input(world: World) -> None:
    rows = json_lines_of("predict", world.classifier, "-", stdin="one\n\nthree é\n")
    assert [row["text"] for row in rows] == ["one", "", "three é"]


def test_predict_keeps_the_rows_of_a_table(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = succeeds("predict", world.classifier, "--data", world.dev, "--out", out)
    assert "10 rows written" in result.stderr
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    wanted = [json.loads(line) for line in world.dev.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == [row["text"] for row in wanted]
    table = bertworks("predict", world.classifier, "--data", world.dev).stdout.splitlines()
    assert table[0].split("\t")[:3] == ["text", "label", "prediction.label"]
    assert len(table) == 11


def test_predict_a_table_on_a_terminal_fits_into_80_columns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.cli.prediction.sys", _Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    lines = bertworks("predict", world.classifier, "--data", world.dev).stdout.splitlines()
    assert lines[0].split() == ["prediction", "probability", "text"]
    assert len(lines) == 2 + len(list(bw.load(world.classifier).predict(data=world.dev)))
    assert max(map(len, lines)) <= 80


class _Terminal:
    """A `sys` whose output is a terminal."""

    class stdout:  # noqa: N801
        isatty = staticmethod(lambda: True)


def test_predict_reads_a_table_from_standard_input(world: World) -> None:
    result = succeeds("predict", world.classifier, "--data", "-", stdin="text\nthe river\na door\n")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == [
        "text",
        "the river",
        "a door",
    ]


def test_doubtful_header_of_a_table_gives_a_warning(world: World, tmp_path: Path) -> None:
    table = tmp_path / "new.tsv"
    table.write_text("row\tprose\n1\tthe river, it rose\n2\ta door; a window\n")
    words = ("predict", world.classifier, "--data", table)
    result = succeeds(*words)
    assert "'row', 'prose' are read as column names" in result.stderr
    assert len(result.stdout.splitlines()) == 3
    assert len(bertworks(*words, "--no-header").stdout.splitlines()) == 4
    named = bertworks(*words, "--header")
    assert named.stderr == ""
    assert named.stdout.splitlines()[0].startswith("row\tprose\tprediction.label")
    fails("predict", world.classifier, "text", "--header", says="header=True is for files")
    fails(*words, "--pair", "a", says="--pair is only for texts", status=2)


def test_tokenize_separates_both_texts(tmp_path: Path) -> None:
    """Also where both are of one token type, as RoBERTa's are."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    for text in ("ab", "cd"):
        pieces += [*text]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    result = succeeds("tokenize", tmp_path, "ab", "--pair", "cd")
    shown = [line.split()[-1] for line in result.stdout.splitlines() if "–" in line]
    assert shown == ["a", "b", "c", "d"]


def test_fill_mask_shows_top_k_pieces_of_each_mask(world: World) -> None:
    text = "the [MASK] was [MASK]"
    values = json_of("fill-mask", world.pretrained, text, "--top-k", 3)
    assert [len(guesses) for guesses in values] == [3, 3]
    table = bertworks("fill-mask", world.pretrained, text, "--top-k", 3).stdout
    assert "[MASK] 2" in table
    assert f"{values[0][0]['probability']:.4f}" in table


def test_fill_mask_compares_candidates(world: World) -> None:
    words = ("fill-mask", world.pretrained, "the [MASK] was open", "--candidates", "door,train")
    (guesses,) = json_of(*words)
    assert {guess["candidate"] for guess in guesses} == {"door", "train"}
    table = bertworks(*words).stdout
    assert all(f"{guess['probability']:.4f}" in table for guess in guesses)


def test_next_sentence_shows_a_probability(world: World) -> None:
    words = ("next-sentence", world.pretrained, "the door was opened", "the train followed")
    chance = json_of(*words)["next_sentence_probability"]
    assert 0 < chance < 1
    assert f"{chance:.4f}" in bertworks(*words).stdout


@pytest.fixture(scope="module")
def causal(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = bw.Tokenizer.load(world.vocab)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        attention="causal",
        initializer_range=0.5,
    )
    task = PretrainingTask(
        tokenizer, InstanceSettings(format="full-sentences"), causal=True, max_length=24
    )
    torch.manual_seed(0)
    model = bw.Model(tokenizer, task, task.network(config).eval())
    return model.save(tmp_path_factory.mktemp("causal") / "m")


@pytest.mark.long
def test_generate_continues_each_text(causal: Path) -> None:
    words = ("generate", causal, "the door", "a river", *CPU, "--max-new-tokens", 5)
    rows = json_lines_of(*words)
    expected = bw.load(causal, device="cpu").generate(["the door", "a river"], max_new_tokens=5)
    assert rows == [
        {"text": text, "generated_text": new}
        for text, new in zip(("the door", "a river"), expected, strict=True)
    ]
    shown = bertworks(*words).stdout
    assert "the door …\n  … " in shown
    sampling_words = (*words, "--temperature", 1, "--top-k", 50, "--top-p", 0.9)
    outcomes = {seed: bertworks(*sampling_words, "--seed", seed).stdout for seed in (1, 2)}
    assert outcomes[1] != outcomes[2]
    assert bertworks(*sampling_words, "--seed", 1).stdout == outcomes[1]


def test_unsupported_models_and_prompts_are_refused(world: World, causal: Path) -> None:
    for words, says in (
        (("generate", world.pretrained, "the door"), "sees both sides"),
        (("generate", world.classifier, "the door"), "trained for classification"),
        (("generate", causal, " "), "empty text"),
        (("generate", causal, "door " * 30), "prompt 1: 30 tokens"),
        (("generate", causal, "door", "--top-p", 2), "top_p=2"),
        (
            ("fill-mask", causal, "the [MASK]"),
            "not pre-trained with masks: it predicts what comes next. Use generate.",
        ),
    ):
        fails(*words, says=says)


def test_tokenize_shows_pieces_and_offsets(world: World) -> None:
    shown = succeeds("tokenize", world.vocab, "The DOOR", "--pair", "a river")
    rows = [line.split() for line in shown.stdout.splitlines()[2:]]
    assert ["door", "1", "4–8", "DOOR"] in [[r[0], *r[3:]] for r in rows]
    values = json_of("tokenize", world.vocab, "-", stdin="The DOOR\n")
    assert values["tokens"] == ["[CLS]", "the", "door", "[SEP]"]
    assert values["offsets"] == [[0, 0], [0, 3], [4, 8], [0, 0]]
    words = ("tokenize", world.vocab, "a [MASK]")
    assert "[MASK]" in json_of(*words, "--typed-mask")["tokens"]
    assert "[MASK]" not in json_of(*words)["tokens"]


def test_tokenizer_of_the_hub_is_downloaded_without_weights(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is taken where a directory is, and no weights are fetched for it."""
    downloads: list[tuple[str, list[str]]] = []

    def download(name: str, *, allow_patterns: list[str], ignore_patterns: str) -> str:
        del ignore_patterns
        downloads.append((name, allow_patterns))
        return str(world.vocab)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    words = ("prepare", world.corpus, "--tokenizer", "some/bert", "--out", out, "--workers", 1)
    succeeds(*words)
    here, there = (path / "shard-00000.arrow" for path in (out, world.data))
    assert here.read_bytes() == there.read_bytes()
    assert "door" in bertworks("tokenize", "bert", "door").stdout
    assert [name for name, _ in downloads] == ["some/bert", "bert"]
    assert all("*.txt" in wanted and "*.safetensors" not in wanted for _, wanted in downloads)


def test_version_is_printed() -> None:
    assert bertworks("--version").stdout.startswith("bertworks 0.")
