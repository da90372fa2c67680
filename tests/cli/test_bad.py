"""Mistakes on the command line: one clear line, the right exit status, and never a traceback.

A mistake in the command line itself ends with status 2 and a hint, one in what it names with 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import pytest

from bertworks.cli.errors import warnings_in_a_line
from bertworks.errors import BertworksWarning

from .conftest import CPU, SMALL, World, bertworks, fails, succeeds


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["frobnicate"], "no such command 'frobnicate'"),
        (["vocb", "x", "--out", "y"], "Did you mean 'vocab'"),
        (["train", "x"], "no such command 'train'. Use finetune, or pretrain without labels. Try"),
        (["fine_tune"], "Use finetune"),
        (["classify", "--model", "m"], "Use predict. Try"),
        (["vocab", "x"], "missing option '--out'"),
        (["vocab", "x", "--ot", "y"], "--out"),
        (["prepare", "x", "--out", "y"], "--tokenizer"),
        (["prepare", "x", "--tokenizer", "t", "--out", "y", "--workers", "0"], "--workers"),
        (["pretrain", "tiny"], "--out"),
        (["pretrain", "tiny", "--out", "y", "--device", "gpu"], "'cuda'"),
        (["finetune", "classification", "--model", "m", "--out", "y"], "--train"),
        (["evaluate", "m"], "--data"),
        (["predict", "m"], "either texts or --data"),
        (["predict", "m", "text", "--data", "f"], "either texts or --data"),
        (["fill-mask", "m"], "TEXT"),
        (["fill-mask", "m", "[MASK]", "--top-k", "0"], "--top-k"),
        (["next-sentence", "m", "a"], "missing argument 'B'"),
        (["tokenize", "m"], "TEXT"),
        (["demo", "now"], "demo takes no arguments, but got 'now'"),
        (["lab", "x"], "'WHAT': 'x' is not one of 'list', "),
    ],
)
def test_mistyped_command_lines_are_refused(words: list[str], says: str) -> None:
    result = fails(*words, says=says, status=2)
    assert "--help" in result.stderr


@pytest.mark.parametrize(
    ("verb", "lines"),
    [
        ("predict", ["", 'Example: bertworks predict runs/tickets "The door is stuck."']),
        ("finetune", ["Required: --model MODEL, --train FILE, --out DIR", "", "Example: bertwor"]),
        ("embed", ["Required: --out FILE", "", "Example: bertworks embed sentence-transformers"]),
    ],
)
def test_a_verb_alone_says_its_usage_and_an_example(verb: str, lines: list[str]) -> None:
    result = bertworks(verb)
    assert (result.exit_code, result.stdout) == (2, "")
    usage, *rest = result.stderr.splitlines()
    assert f" {verb} " in usage
    for line, start in zip(rest, lines, strict=False):
        assert line.startswith(start)
    assert rest[-1].endswith(f" {verb} --help' for all options.")
    assert len(rest) < 8


@pytest.mark.long
def test_bad_corpora_are_refused(world: World, tmp_path: Path) -> None:
    out = tmp_path / "v"
    (tmp_path / "empty.txt").touch()
    (tmp_path / "utf16.txt").write_bytes("text".encode("utf-16"))
    (tmp_path / "open.txt").write_text('<doc id="1" url="u" title="t">\nt\n\nsome text\n')
    for name, says in (
        ("nowhere.txt", "no such file or folder"),
        ("*.none", "no file matches"),
        ("empty.txt", "holds no text"),
        ("utf16.txt", "utf16.txt:1: not UTF-8"),
        ("open.txt", "open.txt:1"),
    ):
        fails("vocab", tmp_path / name, "--out", out, says=says)
    fails("vocab", world.corpus, "--out", out, "--size", 50, says="size=50")
    fails(
        *("vocab", world.corpus, "--out", out, "--size", "many"),
        says="size='many': input should be a valid integer",
    )
    fails("vocab", world.train, "--out", out, "--column", "txt", says="'txt'")
    fails(
        *("vocab", world.corpus, "--out", out, "--column", "text"),
        says="plain text has no column 'text'",
    )
    (tmp_path / "long.txt").write_text("short\n" + "x" * 100)
    fails(
        *("vocab", tmp_path / "long.txt", "--out", out, "--max-line-bytes", 50),
        says="long.txt:2: the line is longer than 50 bytes",
    )
    assert not out.exists()


@pytest.mark.long
def test_encoding_and_format_are_options_of_every_verb(world: World, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes("text\tlabel\nGrüße\tdry\nDas Öl\twet\n".encode("latin-1"))
    out = tmp_path / "out"
    options = ("--encoding", "latin-1", "--format", "tsv")
    for words in (
        ("predict", world.classifier, "--data", table, "--out", out / "a.csv"),
        ("evaluate", world.classifier, "--data", table),
        ("embed", world.classifier, "--data", table, "--out", out / "a.npy"),
        ("features", world.classifier, "--data", table, "--out", out / "a.parquet"),
        ("search", world.classifier, table, "a"),
        ("probe", "--model", world.classifier, "--train", table, "--dev", table),
    ):
        out.mkdir(exist_ok=True)
        fails(*words, says="--encoding latin-1")
        succeeds(*words, *options)
    assert "Grüße,dry,".encode() in (out / "a.csv").read_bytes()
    fails(*words, "--encoding", "latin-17", says="nearest valid name")
    fails("vocab", table, "--out", out, "--format", "docx", says="'jsonl'")
    fails(
        *(*("predict", world.classifier, "--data", world.dev), *("--out", tmp_path / "a.xlsx")),
        says="cannot be written as .xlsx. Name it .tsv, .csv or .jsonl",
    )


def test_existing_outputs_and_inputs_are_not_overwritten(world: World) -> None:
    for out in (world.vocab, world.pretrained / "model"):
        fails("vocab", world.corpus, "--out", out, says="already")
    fails("vocab", world.corpus, "--out", world.corpus, says="is an input")
    fails("vocab", world.corpus, "--out", world.train, says="is a file, not a directory")
    words = ("prepare", world.corpus, "--tokenizer", world.vocab, "--out")
    fails(*words, world.vocab, says="is an input")
    fails(*words, world.classifier, says="already exists")
    words = ("pretrain", "tiny", f"data={world.data}", *SMALL, *CPU, "--out")
    fails(*words, world.vocab, says="not empty and holds no run")
    fails(*words, world.pretrained, "seed=9", says="seed=0, not 9")


def test_bad_preparations_are_refused(world: World, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "p")
    fails("prepare", world.corpus, "--tokenizer", tmp_path, *out, says="tokenizer.json")
    fails("prepare", world.vocab, "--tokenizer", world.corpus, *out, says="corpus.txt")


def test_bad_pretraining_settings_are_refused(world: World, tmp_path: Path) -> None:
    end = (*SMALL, *CPU, "--out", tmp_path / "run")
    data = f"data={world.data}"
    fails("pretrain", "tini", data, *end, says="'tiny'")
    fails("pretrain", tmp_path / "my.yaml", data, *end, says="my.yaml")
    fails("pretrain", "tiny", *end, says="data=VALUE")
    fails("pretrain", "tiny", world.data, *end, says="key=value")
    fails("pretrain", "tiny", f"data={world.vocab}", *end, says="bertworks prepare")
    fails("pretrain", "tiny", data, *end, "stesp=5", says="'steps'")
    fails("pretrain", "tiny", data, *end, "learning_rate=fast", says="learning_rate")
    fails("pretrain", "tiny", data, *end, "model.hidden_size=15", says="hidden_size")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_bad_finetuning_settings_are_refused(world: World, tmp_path: Path) -> None:
    files = {
        "fields.tsv": "text\tlabel\na\tx\nb\n",
        "empty.tsv": "text\tlabel\na\tx\nb\t\n",
        "unseen.tsv": "text\tlabel\na\twett\n",
        "names.tsv": "one\ttwo\na text of words\tx\nanother of them\ty\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    start = ("finetune", "classification", *CPU, "--out", tmp_path / "run")
    model = ("--model", world.pretrained, "max_seq_length=32")
    fails(*start, *model, "--train", tmp_path / "no.tsv", says="no such file")
    fails(*start, *model, "--train", tmp_path / "fields.tsv", says="fields.tsv:3")
    fails(*start, *model, "--train", tmp_path / "empty.tsv", says="empty.tsv:3")
    dev = ("--train", world.train, "--dev", tmp_path / "unseen.tsv")
    fails(*start, *model, *dev, says="unseen.tsv:2: the label 'wett'")
    train = ("--train", world.train)
    fails(*start, *model, *train, "label_column=lable", says="'lable'")
    fails(*start, *model, *train, "learning_rat=1", says="'learning_rate'")
    fails(*start, *model, *train, "epochs", says="key=value")
    fails(*start, "--model", world.vocab, *train, says="config.json")
    fails(*start, "--model", world.train, *train, says="is a file")
    paper = (*start, *model, *train, "--grid", "paper")
    fails(*paper, says="a grid needs --dev")
    assert "--dev 0.1" in bertworks(*paper).stderr
    early = (*start, *model, *train, "early_stopping=2")
    fails(*early, says="Give dev: a table, or a share of the training rows (--dev 0.1)")
    fails(*start, *model, *train, "--dev", "10", says="dev=10.0: a share")
    fails(*start, *model, *train, "seed=1", "seed=2", says="seed is given twice")
    fails(*start, *model, *train, "patience=2", says="called 'early_stopping'")
    fails(*start, *model, *train, "output_dir=x", says="as --out (in Python: out=)")
    fails(
        *(*start, *model, *train, "multi_label=true"),
        says="The task multilabel is for rows with any number of labels",
    )
    late = ("epochs=2", "unfreeze_epochs=3")
    fails(*start, *model, *train, *late, says="unfreeze_epochs=3 is more than epochs=2")
    grid = (*start, *model, *train, "--dev", world.dev)
    fails(*grid, "--seeds", "two", says="seeds=two: not numbers")
    fails(*grid, "--seeds", "", says="seeds=: not numbers")
    fails(*grid, "--seeds", "2", "seed=1", says="Give seeds")
    lab = ("lab", "run", "order", "--out", tmp_path / "run")
    unused = "--budget does nothing with lab run"
    fails(*lab, "--budget", "3", says=unused, status=2)
    compare = ("lab", "compare", "mini", "--data", world.dev, "--seeds", "3")
    fails(*compare, says="--seeds does nothing with lab compare", status=2)
    for command in (grid, lab):
        fails(*command, "--seeds", "0", says="seeds=0: one seed at least is needed")
    twice = ("--grid", "epochs=1", "--grid", "epochs=2")
    fails(*grid, *twice, says="epochs is given twice in the grid")
    fails(*grid, "--grid", "learning_rat=1", says="'learning_rate'")
    fails(*grid, "--grid", "bigger", says="unknown grid 'bigger'")
    glue = ("glue", *model, "--data", tmp_path, "--out", tmp_path / "run")
    fails(*glue, says="no GLUE task found")
    fails(*glue, "--tasks", "colla", says="'cola'")
    fails(*glue, "--tasks", "", says="GLUE has no task ''")
    sst2 = ("finetune", "sst2", *CPU, "--out", tmp_path / "run", *model, *train)
    fails(*sst2, says="classification")
    assert not (tmp_path / "run").exists()


def test_models_that_are_none_or_of_another_task(world: World, tmp_path: Path) -> None:
    missing_path = tmp_path / "gone"
    fails("predict", missing_path, "text", says="no such directory")
    fails("predict", "the text first", world.classifier, says="no such directory")
    fails("evaluate", world.dev, "--data", world.classifier, says="is a file")
    missing = world.dev.parent / "missing" / "page.html"
    fails(
        *("evaluate", world.classifier, "--data", world.dev, "--report", missing),
        says="page.html: cannot be written (No such file or directory)",
    )
    sheet = world.dev.parent / "page.xlsx"
    fails(
        *("evaluate", world.classifier, "--data", world.dev, "--report", sheet),
        says="page.xlsx: a report is an HTML page. Name it .html.",
    )
    assert not sheet.exists()
    bare = tmp_path / "noext"
    fails(
        *("explain", world.classifier, "the river", "--out", bare),
        says="noext: a report is an HTML page. Name it .html.",
    )
    assert not bare.exists()
    fails("fill-mask", world.classifier, "a [MASK]", says="trained for classification")
    fails("next-sentence", world.classifier, "a", "b", says="classification")
    fails("tokenize", missing_path, "text", says="no such directory")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.parent.mkdir()
    for file in (world.classifier / "model").iterdir():
        (weights.parent / file.name).write_bytes(file.read_bytes())
    weights.write_bytes(weights.read_bytes()[:-100])
    fails("predict", weights.parent, "text", says="damaged")


def test_a_recipe_says_what_it_needs(world: World, tmp_path: Path) -> None:
    words = ("pretrain", "adapt", f"data={world.data}", *CPU, "--out", tmp_path / "run")
    fails(*words, says="the setting 'init_checkpoint' (model to start from")
    fails(*words, says="Give it as init_checkpoint=VALUE")
    assert not (tmp_path / "run").exists()


def test_a_model_of_pre_training_predicts_nothing(world: World) -> None:
    says = "Use fill-mask, next-sentence or embed; or train it with finetune"
    fails("predict", world.pretrained, "a door", says=says)
    fails("predict", world.pretrained, "--data", world.dev, says=says)


def test_a_model_of_pre_training_is_measured_on_a_corpus(world: World, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the river\nthe door\n")
    says = ": the model is only pre-trained, and is evaluated on the output of `bertworks prepare`"
    for data in (texts, world.dev):
        fails("evaluate", world.pretrained, "--data", data, says=f"{data}{says}")


def test_a_mistake_on_the_command_line_is_not_the_recipe_s(world: World, tmp_path: Path) -> None:
    start = ("pretrain", "tiny", *CPU, "--out", tmp_path / "run")
    data = f"data={world.data}"
    fails(*start, data, "step=3", says="error: unknown setting 'step'")
    fails(*start, data, "steps=0", says="error: steps=0")
    fails(*start, data, "model.hiden_size=3", says="error: unknown setting 'model.hid")
    fails(*start, says="error: the setting 'data' is missing. Give it as data=VALUE")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("step: 3\nsteps: 3\n")
    fails("pretrain", recipe, data, *start[2:], says="mine.yaml: unknown setting 'step'")


def test_a_rate_beyond_measure_is_refused(world: World, tmp_path: Path) -> None:
    start = ("finetune", "classification", "--model", world.pretrained, "--train", world.train)
    words = (*start, *CPU, "max_seq_length=32", "epochs=0.1", "warmup=0")
    for rate in ("inf", "nan", "1e999", ".inf", "1e+38"):
        says = "learning_rate=" + rate.replace("1e999", "inf").removeprefix(".")
        fails(*words, f"learning_rate={rate}", "--out", tmp_path / "a", says=says)
    assert not (tmp_path / "a").exists()


ODD_NAME = "x\udcff"  # the byte 0xff, as Python has it


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "darwin", reason="there all names are UTF-8")
def test_names_that_are_not_utf_8(world: World, tmp_path: Path) -> None:
    """They are refused where libraries could not use them; otherwise they are read, and shown."""
    folder = tmp_path / f"corpus{ODD_NAME}"
    folder.mkdir()
    (folder / f"a{ODD_NAME}.txt").write_bytes(world.corpus.read_bytes())
    table = tmp_path / f"{ODD_NAME}.jsonl"
    table.write_bytes(world.dev.read_bytes())
    out = tmp_path / ODD_NAME
    says = "x\\udcff: the name is not UTF-8"
    fails("predict", out, "text", says=says)
    fails("prepare", folder, "--tokenizer", world.vocab, "--out", out, says=says)
    model = ("--model", world.classifier, "--train", table, "--dev", table, "max_seq_length=32")
    fails("finetune", "classification", *model, *CPU, "--out", out, says=says)
    fails("convert", world.classifier, out, says=says)
    words = ("embed", world.classifier, "text", *CPU, "--out", f"{out}.parquet")
    fails(*words, says="x\\udcff.parquet: the name is not UTF-8")
    assert not out.exists()

    for words in (
        ("prepare", folder, "--tokenizer", world.vocab, "--out", tmp_path / "p", "--workers", 1),
        ("predict", world.classifier, "--data", table, "--out", f"{out}.tsv", *CPU),
        ("evaluate", world.classifier, "--data", table, "--report", f"{out}.html", *CPU),
        ("finetune", "classification", *model, *CPU, "epochs=0.1", "--out", tmp_path / "run"),
    ):
        succeeds(*words)
    assert "x\\udcff" in (tmp_path / "run" / "data.json").read_text(encoding="utf-8")
    assert "x\\udcff" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert Path(f"{out}.html").is_file()


def test_bad_texts_are_refused(world: World, tmp_path: Path) -> None:
    fails("predict", world.classifier, " ", says="empty text")
    fails("predict", world.classifier, "a", "--pair", "b", says="single texts")
    fails("predict", world.classifier, "\udcff", says="surrogate")
    fails("fill-mask", world.pretrained, "", says="empty text")
    fails("fill-mask", world.pretrained, "no mask", says="no [MASK] in the text")
    long = "door " * 100
    fails("fill-mask", world.pretrained, f"{long} [MASK]", says="64")
    fails("next-sentence", world.pretrained, "a", "", says="empty text")
    table = ("predict", world.classifier, "--data", world.dev)
    fails(*table, "--out", tmp_path / "no" / "out.tsv", says="out.tsv")
    fails("predict", world.classifier, "-", stdin=b"fine\n\xff\n", says="standard input:2")


def _start(*words: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from bertworks.cli import main; main()", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Whoever runs the tests in the background may have Ctrl-C ignored, and children inherit that.
    pipes["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, **{**pipes, **options})  # type: ignore[call-overload,no-any-return]


@pytest.mark.long
def test_ctrl_c_saves_and_names_the_command_to_resume(world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    own = [word for word in SMALL if not word.startswith("steps=")]
    words = (*own, f"data={world.data}", "steps=1000000", "log_every=1", *CPU)
    process = _start("pretrain", "tiny", *words, "--out", run)
    try:
        deadline = time.monotonic() + 120
        journal = run / "journal.jsonl"
        while not (journal.exists() and b'"train"' in journal.read_bytes()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].startswith("stopped after step")
    assert "same command" in errors
    assert "Traceback" not in errors
    assert any((run / "checkpoints").iterdir())


def wait_until_asleep(pid: int) -> None:
    """Wait until the main thread of a process sleeps, as in a read.

    Python looks for signals before it reads: one that comes in between is noticed with the next
    line alone.
    """
    state = Path(f"/proc/{pid}/task/{pid}/stat")
    while state.read_text().rpartition(")")[2].split()[0] not in "SZ":
        time.sleep(0.002)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")
def test_ctrl_c_of_other_verbs_is_one_line(world: World) -> None:
    process = _start("tokenize", world.vocab, "-", "--json", stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("text\n")
        process.stdin.flush()
        assert '"tokens"' in process.stdout.readline()  # each line is answered as it comes
        wait_until_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        errors = process.communicate()[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.startswith("error: interrupted")
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_reader_that_has_seen_enough_is_no_error(world: World) -> None:
    process = _start("predict", world.classifier, "-", *CPU, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate("a line\n" * 3000, timeout=120)
    assert errors == ""
    assert process.returncode == 141


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line(world: World) -> None:
    with open("/dev/full", "w") as full:
        process = _start("tokenize", world.vocab, "text", stdout=full)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.strip() == "error: No space left on device"


def test_little_memory_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "warning" not in bertworks("settings", "vocab").output
    monkeypatch.setattr("bertworks.utils.memory.is_little_left", lambda: True)
    says = bertworks("settings", "vocab").stderr
    assert says.startswith(
        "warning: less than 256 MB of memory is available to this process; if it ends"
    )


def test_equal_warnings_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings_in_a_line():
        for text in ("a.txt:1: odd", "b.txt:1: odd", "a.txt:1: odd"):  # as of a file read twice
            warnings.warn(text, BertworksWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: a.txt:1: odd\nwarning: b.txt:1: odd\n"


PanicException = type("PanicException", (BaseException,), {})  # as Rust's libraries raise it


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "out of memory. Free some, or lower batch_tokens"),
        (
            RuntimeError("[enforce] DefaultCPUAllocator:\ncan't allocate 9 bytes"),
            "allocate 9 bytes)",
        ),
        (PanicException("no thread:\nout of memory"), "out of memory (no thread: out of"),
    ],
)
def test_out_of_memory_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, says: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("bertworks.loading.load", fail)
    fails("fill-mask", "mini", "a [MASK]", "--backend", "torch", says=says)


def test_errors_of_settings_end_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda process, number: signals.append((process, number)))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for words in (["pretrain", "tiny", "batch_sise=3"], ["pretrain", "--seeed"]):
        assert bertworks(*words).exit_code != 0
    assert signals == [(os.getppid(), signal.SIGTERM)] * 2
    assert bertworks("inspect", "nowhere at all").exit_code == 1
    assert len(signals) == 2, "a file may be there when the processes start again"
