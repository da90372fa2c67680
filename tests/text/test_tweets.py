"""BERTweet's normalization of tweets, against the class of `transformers`."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time
import types
from pathlib import Path

import pytest
import transformers

from bertworks.errors import BertworksError, BertworksWarning
from bertworks.text import tweets
from bertworks.text.aligned_text import AlignedText
from bertworks.text.tokenizer import Tokenizer

from .test_fast_bpe import learn_codes
from .test_tokenizer_classes import TEXTS

TWEETS = [
    "@JohnSmith check https://t.co/abc?x=(1) and www.example.com/a, or mail a.b@c.org!!!!!! :-) <3",
    "I can't, I cannot go; she's he'll they'd we've I'm you're … ain’t it 5 p.m. or 6 a . m . now",
    "So cool 😂😂 👍🏽 ✅ ⭐ #hash_tag #1 100% -5.5 1/2 +1 (800) 555-1234 --> <b>bold</b> ......",
    "AT&amp;T &#x41;&#150;&hellip;&nothing;&#xD800; &lt;3 HTTPS://X.COM/Y D8 @ @: http",
    "नमस्ते दुनिया ٣٤٥ 東京 ไทย ²½ ſſ K 8.30 rock'n'roll co-op _x_ a_b",
    "",
    " \n\t ",
]
PARTS = [
    *"ab cdDpPoO8:;=<>3-_'.,/()[]{}@#&x;0129 \n!?*+|\\\"%~`’…“”ſéनानी✅😂👍🏽\u200d\ufe0fⅧ²",
    *("http", "www.", "https://", "&amp;", "&#x41;", "n't ", "cannot ", "'s ", " p.m.", "ca"),
    *(".com", "&hellip;", "555-1234", "+1 (800) "),
]
NAMES = {"😂": ":face_with_tears_of_joy:", "✅": ":white_heavy_check_mark:", "\ufe0f": ""}


@pytest.fixture
def emoji(monkeypatch) -> types.ModuleType:
    """The package of emojis, or one that knows a few names."""
    tweets._load.cache_clear()
    if importlib.util.find_spec("emoji") is None:
        module = types.ModuleType("emoji")
        vars(module).update(
            __version__=tweets.EMOJI_VERSION, demojize=lambda text: NAMES.get(text, text)
        )
        monkeypatch.setitem(sys.modules, "emoji", module)
    yield importlib.import_module("emoji")
    tweets._load.cache_clear()


@pytest.fixture(scope="module")
def tweets_of_wnut(data_dir: Path) -> list[str]:
    blocks = (data_dir / "wnut17" / "dev.conll").read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split("\t")[0] for line in block.splitlines()] for block in blocks]
    return [" ".join(words) for words in rows[::7]]


def write_bertweet(directory: Path, texts: list[str], **settings: object) -> Path:
    codes = learn_codes(texts, 60)
    (directory / "bpe.codes").write_text("".join(f"{a} {b} 7\n" for a, b in codes), "utf-8")
    words = [word for text in texts for word in text.split()]
    pieces = dict.fromkeys(
        [*("@USER", "HTTPURL", "n't", "'s", ":face_with_tears_of_joy:")]
        + [f"{letter}@@" for word in words for letter in word]
        + [word[-1] for word in words]
        + [a if a.endswith("</w>") else f"{a + b}@@" for a, b in codes if not b.endswith("</w>")]
        + [(a + b).removesuffix("</w>") for a, b in codes if b.endswith("</w>")]
    )
    (directory / "vocab.txt").write_text("".join(f"{piece} 5\n" for piece in pieces), "utf-8")
    settings = {"tokenizer_class": "BertweetTokenizer", "normalization": True, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.mark.filterwarnings("ignore:emoji .* is installed")
def test_tweets_are_normalized_as_in_transformers(tmp_path, emoji, tweets_of_wnut):
    shuffle = random.Random(1)
    random_texts = ["".join(shuffle.choices(PARTS, k=15)) for _ in range(600)]
    texts = [*TWEETS, *TEXTS, *tweets_of_wnut, *random_texts]
    write_bertweet(tmp_path, [*TWEETS, *TEXTS])
    theirs = transformers.BertweetTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path / "again")
    copy = Tokenizer.load(tmp_path / "again")
    assert copy.fingerprint == tokenizer.fingerprint
    for text, own, same in zip(
        texts, tokenizer.segments(texts), copy.piece_ids(texts), strict=True
    ):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert own.input_ids.tolist() == same.tolist() == expected, text
        assert (own.offsets[:, 0] < own.offsets[:, 1]).all()
    plain = Tokenizer.load(write_bertweet(tmp_path, TWEETS, normalization=False))
    assert plain.fingerprint != tokenizer.fingerprint
    pair = tokenizer.encode("@a b", "http://c.de").input_ids.tolist()
    assert pair == theirs("@a b", "http://c.de")["input_ids"]


@pytest.mark.filterwarnings("ignore:emoji .* is installed")
def test_mask_in_a_tweet_is_the_mask_token(tmp_path, emoji):
    write_bertweet(tmp_path, TWEETS)
    theirs = transformers.BertweetTokenizer.from_pretrained(tmp_path)
    own = Tokenizer.load(tmp_path).encode("@a isn't <mask>, http://b.c", typed_mask=True)
    assert own.input_ids.tolist() == theirs("@a isn't <mask>, http://b.c")["input_ids"]
    assert theirs.mask_token_id in own.input_ids


@pytest.mark.filterwarnings("ignore:emoji .* is installed")
def test_offsets_in_a_tweet_are_those_of_the_original(emoji):
    text = "@Jo isn't AT&amp;T’s😂!!!!!!  https://t.co/x"
    normalized, origin = tweets.normalize_tweet(text, "<mask>")
    spans = {}
    start = 0
    for word in normalized.split():
        start = normalized.index(word, start)
        spans[word] = text[origin[start, 0] : origin[start + len(word) - 1, 1]]
        start += len(word)
    assert spans["@USER"] == "@Jo"
    assert (spans["is"], spans["n't"]) == ("is", "n't")
    assert (spans["&"], spans["T"], spans["'s"]) == ("&amp;", "T", "’s")
    assert spans[":face_with_tears_of_joy:"] == "😂"
    assert spans["HTTPURL"] == "https://t.co/x"


def test_emojis_of_another_version_are_a_warning(emoji, monkeypatch):
    monkeypatch.setattr(emoji, "__version__", "2.0.0", raising=False)
    with pytest.warns(BertworksWarning, match=r"emoji 2\.0\.0 is installed, .* of version 0\.6\.0"):
        tweets.normalize_tweet("a", "<mask>")


@pytest.mark.parametrize("module", ["emoji", "regex"])
def test_a_missing_package_for_tweets_is_named(emoji, monkeypatch, tmp_path, module):
    monkeypatch.setitem(sys.modules, module, None)
    tokenizer = Tokenizer.load(write_bertweet(tmp_path, TWEETS))
    says = rf"normalization needs the package '{module}'.*bertworks\[tweets\]"
    with pytest.raises(BertworksError, match=says):
        tokenizer.encode("a")


def test_aligned_text_knows_the_sources_of_its_characters():
    text = AlignedText("ΟΔΟΣ İ e\u0301a")
    text.normalize("NFC")
    assert (text.text, text.origins[-2:]) == ("ΟΔΟΣ İ éa", [(7, 9), (9, 10)])
    text.lower()
    assert text.text == "οδος i\u0307 éa"
    assert text.origins[5:8] == [(5, 6), (5, 6), (6, 7)]
    text.normalize("NFD")
    text.select(lambda char: char != "\u0301")
    assert (text.text, text.origins[-2:]) == ("οδος i\u0307 ea", [(7, 9), (9, 10)])
    text.respace(" e", "e ")
    assert (text.text, text.origin.tolist()[-3:]) == ("οδος i\u0307e a", [[7, 9], [7, 9], [9, 10]])


@pytest.mark.filterwarnings("ignore:emoji .* is installed")
@pytest.mark.parametrize("part", ["a.", "1.", "é.", "1.+", "http://(", "<a", "http://x !?"])
def test_a_tweet_like_an_address_or_a_tag_without_an_end_takes_linear_time(emoji, part):
    start, _, part = part.rpartition(" ")

    def seconds(count: int) -> float:
        begin = time.process_time()
        text, _ = tweets.normalize_tweet(start + part * count, "<mask>")
        assert len(text.replace(" ", "")) >= len(part) * count
        return time.process_time() - begin

    assert seconds(8_000) < 24 * seconds(1_000)
