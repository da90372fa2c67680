"""Settings on the command line: found, spelled in several ways, and from a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertworks.cli.verb_settings import split_settings
from bertworks.errors import SettingsError
from bertworks.serving.settings import ServeSettings
from bertworks.settings.verbs import VERB_SETTINGS

from .conftest import bertworks, fails, succeeds

OPTIONS = {"--out": True, "--json": False}


@pytest.mark.parametrize("verb", VERB_SETTINGS)
def test_settings_are_listed_and_written_as_yaml(verb: str) -> None:
    listed = succeeds("settings", verb)
    assert max(map(len, listed.stdout.splitlines())) <= 80
    written = bertworks("settings", verb, "--yaml")
    assert yaml.safe_load(written.stdout) is None, "all of it is comments"
    shown = bertworks(verb, "--help").stdout
    assert "Settings, given as KEY=VALUE" in shown


def test_settings_of_a_task_are_listed() -> None:
    plain, tagging = (bertworks("settings", "finetune", *task).stdout for task in ([], ["tagging"]))
    assert "learning_rate=2.0e-05" in plain
    assert "learning_rate=2.0e-05" in tagging
    assert "labelled_piece=" not in plain
    assert "labelled_piece=first" in tagging
    assert "labelled_piece=first" in bertworks("finetune", "tagging", "--help").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["convert"], "the verb 'convert' takes no settings"),
        (["convert"], "Verbs with settings: vocab, prepare, pretrain"),
        (["foo"], "there is no verb 'foo'. Verbs with settings: vocab, prepare, pretrain"),
        (["foo"], "answer, index"),
        (["finetun"], "The nearest valid name is 'finetune'"),
        (["pretrain", "tagging"], "pretrain takes no task"),
        (["finetune", "taging"], "your own task is given as path/to/file.py:Class"),
        (["finetune", "taging"], "The nearest valid name is 'tagging'"),
    ],
)
def test_mistakes_are_named(words: list[str], says: str) -> None:
    fails("settings", *words, says=says)


def test_help_says_what_each_option_is_for() -> None:
    serve = " ".join(bertworks("serve", "--help").stdout.split())
    for what in ("private key (PEM file)", "certificate (PEM file)", "Address to", "Port"):
        assert serve.count(what) == 1, what
    added = "Add words to the vocabulary; each new vector starts as the mean of its old pieces."
    assert added in " ".join(bertworks("add-tokens", "--help").stdout.split())


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("PORT", "x", "BERTWORKS_SERVE_PORT: invalid value for '--port'"),
        ("DEVICE", "tpu", "BERTWORKS_SERVE_DEVICE: invalid value for '--device'"),
        ("MAX_TEXTS", "-3", "BERTWORKS_SERVE_MAX_TEXTS: max_texts=-3"),
        ("MAXTEXTS", "3", "The nearest valid name is 'BERTWORKS_SERVE_MAX_TEXTS'"),
        ("API_KEYS", "no such file", "no such file: no such file"),
    ],
)
def test_mistakes_in_variables_of_serve_are_named(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"BERTWORKS_SERVE_{variable}", value)
    fails("serve", "mini", says=says, status=2 if variable in ("PORT", "DEVICE") else 1)


def test_command_line_overrides_variables_and_these_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    servers: list[tuple[ServeSettings, dict[str, Any]]] = []
    monkeypatch.setattr(
        "bertworks.serving.server.serve",
        lambda _, settings, __, **options: servers.append((settings, options)),
    )
    file = tmp_path / "settings.yaml"
    file.write_text("max_texts: 5\nmax_characters: 6\nmax_memory: 700\n")
    variables = {"PORT": 81, "HOST": "::1", "MAX_TEXTS": 15, "MAX_CHARACTERS": 16, "LAZY": "true"}
    variables |= {"SETTINGS_FILE": file, "CORS_ORIGINS": "https://a.org,https://b.org"}
    variables |= {"BATCH_TOKENS": "", "NO_AUTH": 1}
    for name, value in variables.items():
        monkeypatch.setenv(f"BERTWORKS_SERVE_{name}", str(value))
    bertworks("serve", "mini", "--port", "82", "max_characters=26")
    ((settings, options),) = servers
    assert (options["port"], options["host"], options["no_auth"]) == (82, "::1", True)
    assert settings == ServeSettings(
        max_texts=15,
        max_characters=26,
        max_memory=700,
        lazy=True,
        cors_origins=("https://a.org", "https://b.org"),
    )


def test_help_of_serve_lists_a_variable_for_each_setting_and_option() -> None:
    text = bertworks("serve", "--help").stdout
    variables = set(re.findall(r"BERTWORKS_SERVE_\w+", text))
    options = re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)
    names = {*ServeSettings.model_fields, *(option.replace("-", "_") for option in options)}
    names -= {"help", "settings"}
    assert {f"BERTWORKS_SERVE_{name.upper()}" for name in {*names, "settings_file"}} == variables


def test_finetune_s_help_is_under_two_screens() -> None:
    assert len(bertworks("finetune", "--help").stdout.splitlines()) <= 100


@pytest.mark.parametrize(
    "verb", [verb for verb in VERB_SETTINGS if verb not in ("pretrain", "estimate")]
)
def test_settings_are_read_from_a_file(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("no_such_setting: 1")
    arguments = {
        "finetune": ["tagging", "--model", "m", "--train", "f", "--out", tmp_path / "out"],
        "glue": ["--model", "m", "--data", tmp_path, "--out", tmp_path / "out"],
        "probe": ["--model", "m", "--train", "f", "--dev", "f"],
        "ablate": ["features", "--model", "m", "--train", "f", "--dev", "f", "--out", "o"],
        "search": ["m", "f", "a text"],
        "index": ["m", "store"],
        "answer": ["a text", "--corpus", "f", "--reader", "m"],
        "distil": ["static", "m"],
        "vocab": ["f"],
        "score": ["tagging", "--data", "f"],
        "check-labels": ["--model", "m", "--data", "f"],
        "add-tokens": ["m", "f"],
        "prepare": ["f", "--tokenizer", "v"],
        "evaluate": ["m", "--data", "f"],
        "lab": ["compare", "m", "--data", "f"],
        "next-sentence": ["m", "a text", "another"],
    }.get(verb, ["m", "a text"])
    verbs = ("embed", "features", "mine", "vocab", "prepare", "distil", "add-tokens", "shrink")
    out = ["--out", tmp_path / "out.npy"] if verb in verbs else []
    fails(verb, *arguments, *out, "--settings", file, says="unknown setting 'no_such_setting'")


@pytest.mark.parametrize(
    ("command_line", "others", "words"),
    [
        ("m --pooling cls", "m", "pooling=cls"),
        ("m --pooling=cls --layers -2", "m", "pooling=cls layers=-2"),
        ("m --normalize text", "m text", "normalize=true"),
        ("m --no-normalize text", "m text", "normalize=false"),
        ("m --max-seq-length 8 --json", "m --json", "max_seq_length=8"),
        ("m pooling=cls 1=2 ?a=b -- a=b", "m 1=2 ?a=b -- a=b", "pooling=cls"),
        ("m --out pooling=cls", "m --out pooling=cls", ""),
        ("m -- pooling=cls --pooling x", "m -- pooling=cls --pooling x", ""),
    ],
)
def test_a_setting_has_several_spellings(command_line: str, others: str, words: str) -> None:
    found = split_settings("embed", command_line.split(), OPTIONS, takes_texts=True)
    assert found == (others.split(), words.split())


def test_words_stay_where_texts_are_not_taken() -> None:
    typed = ["tagging", "learning_rat=1", "--learning-rate", "2e-5", "--labelled-piece", "all"]
    assert split_settings("finetune", typed, OPTIONS, takes_texts=False) == (
        ["tagging", "learning_rat=1"],
        ["learning_rate=2e-5", "labelled_piece=all"],
    )


def test_the_task_may_come_after_options() -> None:
    typed = ["--out", "d", "--learning-rate", "1", "--labelled-piece", "all", "tagging"]
    found = split_settings("finetune", typed, OPTIONS, takes_texts=False)
    assert found == (["--out", "d", "tagging"], ["learning_rate=1", "labelled_piece=all"])


@pytest.mark.parametrize(
    ("command_line", "says"),
    [
        (["--poolin", "cls"], "no option or setting '--poolin'. The nearest valid name is"),
        (["poolin=cls"], "unknown setting 'poolin=cls'. The nearest valid name is 'pooling'"),
        (["pool=cls"], "'pool=cls'. .* 'pooling'. To pass it as a text, put -- before it"),
        (["lr=3"], "unknown setting 'lr=3'"),
        (["a.b=c=d"], "unknown setting 'a.b=c=d'"),
        (["text", "truncate=true"], "unknown setting 'truncate=true'"),
        (["--pooling"], "--pooling needs a value"),
    ],
)
def test_misspelt_settings_are_named(command_line: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        split_settings("embed", command_line, OPTIONS, takes_texts=True)


def test_a_text_may_have_an_equals_sign() -> None:
    texts = ["the sum a=b", "a =b", "x-y=1", "=", "http://a.org/?q=1"]
    found = split_settings("embed", ["m", *texts], OPTIONS, takes_texts=True)
    assert found == (["m", *texts], [])


@pytest.mark.parametrize("verb", ["predict", "generate", "embed", "features", "search"])
def test_verbs_of_texts_refuse_settings_that_are_none(verb: str) -> None:
    with pytest.raises(SettingsError, match="unknown setting 'nosuch=1'"):
        split_settings(verb, ["m", "f", "a text", "nosuch=1"], OPTIONS, takes_texts=True)


def test_names_of_models_are_no_settings() -> None:
    typed = ["tickets=runs/tickets", "lazy=true"]
    assert split_settings("serve", typed, OPTIONS, takes_texts=True) == (typed[:1], typed[1:])
    with pytest.raises(SettingsError, match="To pass it as a name, put -- before it"):
        split_settings("serve", ["m", "max_text=3"], OPTIONS, takes_texts=True)


def test_a_misspelt_option_is_a_usage_error() -> None:
    fails("embed", "m", "a text", "--poolin", "cls", "--out", "x.npy", says="'--pooling'", status=2)


COMPUTING = {
    "predict": ["mini", "a text"],
    "fill-mask": ["mini", "a [MASK]"],
    "next-sentence": ["mini", "a", "b"],
    "generate": ["mini", "a"],
    "embed": ["mini", "a", "--out", "v.npy"],
    "features": ["mini", "a", "--out", "v.parquet"],
    "search": ["mini", "texts.txt", "a"],
    "evaluate": ["mini", "--data", "rows.tsv"],
    "probe": ["--model", "mini", "--train", "rows.tsv", "--dev", "rows.tsv"],
    "check-labels": ["--model", "mini", "--data", "rows.tsv"],
}


@pytest.mark.parametrize("verb", COMPUTING)
def test_every_verb_that_computes_takes_a_precision(verb: str) -> None:
    for word in ("precision=fp33", "--precision=fp33"):
        fails(
            *(verb, *COMPUTING[verb], word),
            says="precision='fp33': input should be 'auto', 'fp32', 'tf32', 'bf16', 'fp16' or",
        )
    result = bertworks(verb, *COMPUTING[verb], "precison=fp32")
    assert "The nearest valid name is 'precision'" in result.stderr


def test_option_given_as_a_setting_is_named() -> None:
    fails(
        *("fill-mask", "mini", "a [MASK]", "top_k=3"),
        says="unknown setting 'top_k=3'. It is an option: --top-k. To pass it",
        status=2,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "mini", "a", "--out", "page.html", "precision=fp32"),
        ("convert", "mini", "out", "precision=bf16"),
        ("inspect", "mini", "seed=1"),
        ("demo", "seed=1"),
    ],
)
def test_verb_without_settings_says_so(words: tuple[str, ...]) -> None:
    result = bertworks(*words)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {words[0]} takes no settings, but got {words[-1]}. Try: ")


@pytest.mark.long
def test_masked_words_follow_the_precision() -> None:
    words = ("fill-mask", "mini", "she opened the [MASK] .", "--json", "--device", "cpu")
    exact, quantized = (
        json.loads(bertworks(*words, f"precision={name}").stdout) for name in ("fp32", "int8")
    )
    assert exact != quantized
    assert [one["token"] for one in exact[0]][:1] == [one["token"] for one in quantized[0]][:1]
