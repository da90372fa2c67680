"""Imports that are cheap stay so: torch is loaded only by modules that compute."""

from __future__ import annotations

import ast
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

import bertworks
from bertworks.errors import has_pytorch
from bertworks.native.library import has_kernels
from bertworks.tasks import _TASKS
from tests.import_chains import all_modules, find_chain

PACKAGE = Path(bertworks.__file__).parent
HEAVY = ("torch", "transformers", "datasets", "sklearn", "scipy", "matplotlib", "pandas")
LIGHT = (
    "bertworks",
    "bertworks.errors",
    "bertworks.settings.literals",
    "bertworks.settings.base",
    "bertworks.packed",
    "bertworks.cli",
    "bertworks.lab.demo",
    *(
        f"bertworks.{folder.replace('/', '.')}.{path.stem}"
        for folder in ("text", "data", "cli", "lab/demo")
        for path in sorted((PACKAGE / folder).glob("*.py"))
        if path.stem != "__init__"
    ),
    "bertworks.analysis.scoring",
    "bertworks.reports.report",
    "bertworks.tasks.pretraining.instances",
    "bertworks.tasks.pretraining.masking",
    "bertworks.tasks.pretraining.source",
)


# What runs without PyTorch and pyarrow; a folder stands for all its modules.
LIGHT_CORE = (
    *("bertworks.loading", "bertworks.packed", "bertworks.errors", "bertworks.inference.merging"),
    *(f"bertworks.{name}" for name in ("cli", "data", "jobs", "reports", "serving", "settings")),
    *(f"bertworks.{name}" for name in ("text", "utils", "analysis.retrieval", "analysis.scoring")),
    *("bertworks.analysis.inspection", "bertworks.analysis.settings_help"),
    # What methods of `NativeModel` import when they are called.
    *("bertworks.inference.evaluate_data", "bertworks.inference.prediction_files"),
    *("bertworks.inference.pretraining_heads", "bertworks.inference.vectors"),
    *(
        f"bertworks.tasks.{place.partition(':')[0]}"
        for task, place in _TASKS.items()
        if task != "translation"  # it has a decoder, which native code does not compute
    ),
)
NEED_PYTORCH = {"bertworks.serving.generation_runner"}
UNUSED_BY_EMBED = (
    *(*HEAVY, "pyarrow", "yaml", "html", "rich", "http.client", "huggingface_hub", "ssl"),
    *("bertworks.model", "bertworks.serving", "bertworks.tasks.classification"),
    *(f"bertworks.text.{name}" for name in ("bpe_files", "esm_files", "fast_bpe", "tweets")),
    *("bertworks.text.sentencepiece_files", "bertworks.text.word_splitters"),
)


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.long
def test_preparing_data_loads_no_torch() -> None:
    """One process imports them all: a module that loads something heavy is named."""
    code = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module(name)
    for heavy in {HEAVY!r}:
        if heavy in sys.modules:
            sys.exit(f"{{name}} loads {{heavy}}")
"""
    _run(code)


@pytest.mark.long
def test_light_core_imports_no_pytorch() -> None:
    """Each chain of imports that leads to it is named."""
    prefixes = tuple(f"{name}." for name in LIGHT_CORE)
    modules = ["bertworks", *(one for one in all_modules() if f"{one}.".startswith(prefixes))]
    chains = {name: find_chain(name, {*HEAVY, "pyarrow"}) for name in modules}
    lines = {name: " → ".join(chain) for name, chain in chains.items() if chain is not None}
    assert lines.keys() == NEED_PYTORCH, lines


def test_chain_of_imports_names_each_module() -> None:
    chain = find_chain("bertworks.serving.generation_runner", {"torch"})
    assert chain == (*NEED_PYTORCH, "bertworks.inference.generate", "torch")


def test_spinning_is_limited_before_torch_is_imported() -> None:
    code = (
        "import sys, bertworks\n"
        "print('torch' in sys.modules, 'bertworks.utils.threads' in sys.modules)"
    )
    assert _run(code) == "False True"


def test_spinning_is_limited_before_numpy_is_imported() -> None:
    code = (
        "import os, sys, bertworks\n"
        "print('numpy' in sys.modules, 'OPENBLAS_THREAD_TIMEOUT' in os.environ)"
    )
    assert _run(code) == "False True"


@pytest.mark.long
def test_a_verb_is_in_the_module_that_the_command_imports() -> None:
    code = """
import importlib
from bertworks import cli
from bertworks.cli.application import app
from bertworks.settings.verbs import VERBS
for module, verbs in cli.MODULES.items():
    first = len(app.registered_commands)
    importlib.import_module(f"bertworks.cli.{module}")
    assert {command.name for command in app.registered_commands[first:]} == {*verbs}, module
assert sorted(verb for verbs in cli.MODULES.values() for verb in verbs) == sorted(VERBS)
"""
    _run(code)


@pytest.mark.long
def test_a_command_imports_the_module_of_its_verb_alone() -> None:
    code = """
import sys
from bertworks import cli
sys.argv = ["bertworks", "tokenize", "--help"]
try:
    cli.main()
except SystemExit as exit:
    assert exit.code == 0
print(sorted(name for name in cli.MODULES if f"bertworks.cli.{name}" in sys.modules))
"""
    assert _run(code).endswith("['corpus']")


@pytest.mark.long
@pytest.mark.skipif(not has_kernels("fp32"), reason="no native code")
def test_embedding_a_text_imports_only_what_it_needs(tmp_path: Path) -> None:
    """Half of the time from the shell to a vector is imports."""
    code = f"""
import sys
from bertworks import cli
sys.argv = ["bertworks", "embed", "mini-sentences", "a text", "--out", {str(tmp_path / "v.npy")!r}]
try:
    cli.main()
except SystemExit as exit:
    assert exit.code == 0
print([name for name in {UNUSED_BY_EMBED!r} if name in sys.modules])
"""
    assert _run(code).endswith("[]")


@pytest.mark.long
def test_help_loads_nothing_but_what_it_prints_with() -> None:
    """`bertworks --help` and every verb's help answer at once because of this."""
    code = f"""
import sys
from typer.testing import CliRunner
from bertworks.cli import app
runner = CliRunner()
from bertworks.settings.verbs import VERB_SETTINGS, VERBS
verbs = [command.name for command in app.registered_commands]
assert sorted(verbs) == sorted(VERBS), verbs
def run(commands):
    for arguments in commands:
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0, (arguments, result.output)
others = [verb for verb in verbs if verb not in VERB_SETTINGS]
run([["--help"], ["--version"], *([verb, "--help"] for verb in others)])
loaded = [name for name in {(*HEAVY, "numpy", "pyarrow", "tokenizers", "yaml")!r}
          if name in sys.modules]
run([verb, "--help"] for verb in VERB_SETTINGS if verb != "ablate")  # with their settings
print(loaded + [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert _run(code) == "[]"


@pytest.mark.long
def test_texts_in_memory_become_vectors_without_pyarrow() -> None:
    """It is imported where a file is read, and found there under its own names."""
    code = """
import sys
import numpy as np
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.text.tokenizer import Tokenizer
tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
config = EncoderConfig(
    vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)
model = Model.fresh(config, tokenizer)
found = model.embed(["a b", "b"])
before = "pyarrow" in sys.modules
from bertworks.data import parquet
import pyarrow
assert parquet.pa.ArrowException is pyarrow.ArrowException
print(found.shape, before)
"""
    assert _run(code) == "(2, 8) False"


@pytest.mark.long
def test_files_of_text_are_read_without_pyarrow(tmp_path: Path) -> None:
    """Only Parquet, data sets and zstd need it."""
    gz = gzip.compress(b"a text\n") + gzip.compress(b"another\n") + bytes(512)  # padded
    (tmp_path / "a.txt.gz").write_bytes(gz)
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n')
    (tmp_path / "a.csv").write_text("text,label\na text,1\n")
    (tmp_path / "a.tsv").write_text("text\tlabel\na text\t1\n")
    code = f"""
import sys
sys.modules["pyarrow"] = None
from bertworks.data.documents import read_documents
from bertworks.data.overlap import SharedSequences
from bertworks.data.tables import read_rows
from bertworks.data.text_inputs import read_texts
folder = {str(tmp_path)!r}
print([len(list(read_documents(f"{{folder}}/{{name}}"))) for name in ("a.txt.gz", "a.jsonl")])
print([len(list(read_rows(f"{{folder}}/a.{{end}}"))) for end in ("tsv", "csv", "jsonl")])
print([text for _, text in read_texts(f"{{folder}}/a.txt.gz")])
"""
    assert _run(code) == "[1, 1]\n[1, 1, 1]\n['a text', 'another']"


def test_public_names_are_there_when_they_are_used() -> None:
    public = {name for name in dir(bertworks) if not name.startswith("_")}
    assert {"load", "Tokenizer", "pretrain", "finetune", "prepare", "Packed"} <= public
    for name in public:
        assert getattr(bertworks, name) is not None


def test_only_public_names_are_listed() -> None:
    code = """
import sys, bertworks
print(sorted(name for name in dir(bertworks) if name != "__version__"))
assert set(dir(bertworks)) == set(bertworks.__all__)
assert "torch" not in sys.modules
"""
    names = ["BertworksError", "Tokenizer", "finetune", "glue", "load", "pretrain"]
    listed = ast.literal_eval(_run(code))
    assert set(names) < set(listed)
    assert not {"Any", "annotations", "importlib", "errors", "_HOMES"} & set(listed)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="pretran"):
        bertworks.pretran  # noqa: B018  # the access is what is tested


def test_type_checkers_see_every_public_name():
    tree = ast.parse(Path(bertworks.__file__).read_text(encoding="utf-8"))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    modules_by_name = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert modules_by_name == bertworks._HOMES


def test_pytorch_is_looked_for_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert has_pytorch()
    assert "torch" not in sys.modules
    monkeypatch.setattr("bertworks.errors.find_spec", lambda name: None)
    assert not has_pytorch()
