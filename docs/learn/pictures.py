"""Draw the lessons' pictures again: `python docs/learn/pictures.py [NAME…] [--out DIRECTORY]`.

Numbers come from the package and from `mini`; those of the paper are marked as such. Charts need
Chromium and Playwright. What a training gives (`loss`, `features`) takes minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from drawing import arrow, bars, box, explorer, picture, strip, text

import bertworks as bw
from bertworks import explorer as views

IMAGES = Path(__file__).parent / "images"
Draw = Callable[..., str]
WORDS = {
    "months": "january march june",
    "numbers": "two three four",
    "countries": "france italy germany",
    "arts": "music film book",
}
MAY = (
    "he was born in may 1950.",
    "the war ended in may of that year.",
    "it may be used as a name.",
    "they may not have the same parts.",
)
LETTERS = "the old man walked along the river."


@cache
def mini() -> bw.Model:
    return bw.load("mini", device="cpu")


def word_vectors(words: Sequence[str]) -> np.ndarray:
    """Rows of the table of words, less their mean, of unit length: `[words, hidden_size]`."""
    table = mini().encoder.embeddings.word_embeddings.weight.detach().float().numpy()
    table = table - table.mean(0)
    vectors = table[[mini().tokenizer.token_to_id(word) for word in words]]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def words_map(draw: Draw) -> str:
    names = [word for group in WORDS.values() for word in group.split()]
    vectors = word_vectors(names)
    flat = vectors - vectors.mean(0)
    points = flat @ np.linalg.svd(flat, full_matrices=False)[2][:2].T
    groups = [at for at, group in enumerate(WORDS.values()) for _ in group.split()]
    rows = zip(points.tolist(), names, groups, strict=True)
    return draw(
        "map", {"points": [{"x": x, "y": y, "text": t, "group": g} for (x, y), t, g in rows]}, 600
    )


def words_cosines(draw: Draw) -> str:
    names = [word for group in WORDS.values() for word in group.split()]
    vectors = word_vectors(names)
    values = (vectors @ vectors.T).tolist()
    return draw("heat", {"rows": names, "columns": names, "values": values, "showsNumbers": True})


def context_map(draw: Draw) -> str:
    contexts = views.contexts(mini(), "may", MAY)
    points = [
        {"x": x, "y": y, "text": one, "group": at // 2}
        for at, ((x, y), one) in enumerate(zip(contexts["map"][-1], MAY, strict=True))
    ]
    return draw("map", {"points": points}, 520)


def context_layers(draw: Draw) -> str:
    cosines = np.array(views.contexts(mini(), "may", MAY)["similarity"])
    return draw(
        "lines",
        {
            "x": [str(layer) for layer in range(len(cosines))],
            "xName": "after layer",
            "low": 0,
            "high": 1,
            "series": [
                {"name": "month, month", "values": cosines[:, 0, 1].tolist()},
                {"name": "verb, verb", "values": cosines[:, 2, 3].tolist()},
                {"name": "month, verb", "values": cosines[:, :2, 2:].mean((1, 2)).tolist()},
            ],
        },
    )


def context_sides(_: Draw) -> str:
    (blank,) = views.fill(mini(), "the first world [MASK] began in 1914.", top_k=4)["blanks"]
    parts = []
    for index, (side, title) in enumerate(
        (("left", "the first world …"), ("both", "the first world … began in 1914."))
    ):
        items = [(one["token"], one["probability"]) for one in blank[side]["top"]]
        bar_items = [(word, share, f"{share:.0%}") for word, share in items]
        parts.append(bars(bar_items, title=title, top=122 * index, most=1, names=90))
    return picture(460, 240, *parts)


def attention_by_hand(draw: Draw) -> str:
    queries = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    keys = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    scores = queries @ keys.T / np.sqrt(2)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    names = ["river", "bank", "old"]
    data = {"rows": names, "columns": names, "values": weights.tolist(), "showsNumbers": True}
    return draw(
        "heat",
        data | {"columnName": "looked at", "format": "formatPercent", "maxCellSize": 60},
        260,
    )


def attention_heads(draw: Draw) -> str:
    return draw("heads", views.attention(mini(), LETTERS), 400)


def attention_head(draw: Draw) -> str:
    """The head that attends most to the previous piece."""
    attention = views.attention(mini(), LETTERS)
    shares = np.array(attention["measures"]["previous"])
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    return draw("head", attention | {"layer": int(layer), "head": int(head)})


def masks(_: Draw) -> str:
    from bertworks.tasks.pretraining.masking import Masker, MaskingSettings

    source = (
        "the river rises in the hills north of the town and flows through three lakes before it "
        "reaches the sea. in may the water is high and the old bridge is closed for some weeks."
    )
    tokenizer = mini().tokenizer
    ids = np.asarray(tokenizer.encode(source).input_ids, np.int64)
    masker = Masker(MaskingSettings(), tokenizer)
    for key in range(1000):  # the first draw in which all three fates occur
        masking = masker(ids, np.array([0, len(ids)]), np.array([key], np.uint64))
        fate = {
            at: 0 if new == tokenizer.mask_id else 2 if new == ids[at] else 1
            for at, new in zip(masking.positions, masking.input_ids[masking.positions], strict=True)
        }
        if set(fate.values()) == {0, 1, 2}:
            break
    tones = ("first", "second", "third")
    items = [
        (token, tones[fate[at]], 0.35) if at in fate else (token, "edge", 0.06)
        for at, token in enumerate(tokenizer.tokens(masking.input_ids))
    ]
    boxes, height = strip(items)
    names = ("replaced by [MASK]", "by a random piece", "kept, and predicted")
    key_row = [
        box(6 + 152 * at, height + 6, 12, 12, "", tone, 0.35)
        + text(24 + 152 * at, height + 16, name, 11, "soft", "start")
        for at, (tone, name) in enumerate(zip(tones, names, strict=True))
    ]
    return picture(460, height + 26, boxes, *key_row)


def input_sum(_: Draw) -> str:
    tokens = ["[CLS]", "my", "dog", "[SEP]", "he", "likes", "it", "[SEP]"]
    rows = (
        ("token", tokens, "first"),
        ("position", [str(at) for at in range(8)], "third"),
        ("segment", ["A"] * 4 + ["B"] * 4, "second"),
    )
    parts = []
    for row, (name, words, tone) in enumerate(rows):
        y = 8 + 44 * row
        parts.append(text(62, y + 19, name, 12, "soft", "end"))
        if row:
            parts.append(text(76, y - 4, "+", 14, "soft"))
        parts += [box(70 + 48 * at, y, 44, 28, word, tone) for at, word in enumerate(words)]
    parts.append(text(62, 160, "sum", 12, "soft", "end"))
    for at in range(8):
        parts += [arrow(92 + 48 * at, 126, 92 + 48 * at, 142)]
        parts += [box(70 + 48 * at, 144, 44, 24, "", "fourth", 0.25)]
    return picture(460, 178, *parts)


def next_sentences(_: Draw) -> str:
    first = "the river is 40 km long."
    others = (
        "it flows into the lake.",
        "her first album was released in 1998.",
        "the engine has four cylinders.",
    )
    shares = [(other, mini().next_sentence(first, other)) for other in others]
    items = [(other, share, f"{share:.0%}") for other, share in shares]
    return picture(500, 96, bars(items, title=f"“{first}” …", width=500, names=236, most=1))


def pieces(_: Draw) -> str:
    tokenizer = mini().tokenizer
    parts, y = [], 4.0
    for word in ("river", "walked", "hydroelectric", "unbelievable", "internationalization"):
        tokens = tokenizer.tokens(tokenizer.encode(word).input_ids)[1:-1]
        tones = ("first", "second", "third", "fourth")
        items = [(token, tones[at % 4], 0.14) for at, token in enumerate(tokens)]
        parts.append(text(132, y + 17, word, 12, "soft", "end"))
        x = 142.0
        for token, tone, strength in items:
            parts.append(box(x, y, 7.2 * len(token) + 14, 25, token, tone, strength))
            x += 7.2 * len(token) + 19
        y += 32
    return picture(460, y, *parts)


def vocabulary_size(draw: Draw) -> str:
    from pydoc_data.topics import topics

    texts = list(topics.values())
    sizes = (300, 500, 1000, 2000, 4000, 8000)
    held_out, train = texts[::10], [one for at, one in enumerate(texts) if at % 10]
    shares = []
    for size in sizes:
        tokenizer = bw.train_vocabulary(train, size=size)
        encodings = [tokenizer.encode(one) for one in held_out]
        count = sum(len(one.input_ids) - 2 for one in encodings)
        shares.append(count / sum(len(set(one.word_ids)) - 1 for one in encodings))
    series = [{"name": "pieces", "values": shares}]
    data = {"x": [f"{size:,}" for size in sizes], "xName": "pieces in the vocabulary"}
    return draw("lines", data | {"series": series, "low": 1})


def loss(draw: Draw) -> str:
    """The run of lesson 6, and the same without heads that begin as neighbours."""
    from pydoc_data.topics import topics

    from bertworks.runs.run_directory import read_run

    runs: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "corpus.txt").write_text("\n\n".join(topics.values()), encoding="utf-8")
        tokenizer = bw.train_vocabulary(list(topics.values()), size=2000)
        tokenizer.save(place / "vocab")
        bw.prepare([place / "corpus.txt"], tokenizer=place / "vocab", out=place / "prepared")
        for name, beginning in (("random", "random"), ("neighbours", "neighbours")):
            out = place / name
            settings = [*LOSS_SETTINGS, f"initial_attention={beginning}"]
            bw.pretrain("tiny", [f"data={place / 'prepared'}", *settings], out=out)
            lines = [line for line in read_run(out).lines() if line["kind"] == "train"]
            runs[name] = {line["step"]: line["losses"]["mlm"] for line in lines}
    steps = sorted(set.intersection(*(set(one) for one in runs.values())))
    series = [{"name": name, "values": [one[step] for step in steps]} for name, one in runs.items()]
    return draw("lines", {"x": [str(step) for step in steps], "xName": "step", "series": series})


LOSS_SETTINGS = ("steps=600", "batch_size=16", "log_every=40", "phases=[{max_seq_length: 64}]")


def sizes(_: Draw) -> str:
    import torch

    from bertworks.nn.config import EncoderConfig
    from bertworks.tasks.pretraining.network import PretrainingNetwork

    items = []
    for name, layers, width in (("base", 12, 768), ("large", 24, 1024)):
        config = EncoderConfig(
            vocab_size=30522,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )
        with torch.device("meta"):
            network = PretrainingNetwork(config)
        parts = {
            "embeddings": network.encoder.embeddings,
            "attention": [one.attention for one in network.encoder.layers],
            "all": network,
        }
        counts = {key: count(part) for key, part in parts.items()}
        counts["feed-forward"] = counts["all"] - counts["embeddings"] - counts["attention"]
        rows = ("embeddings", "attention", "feed-forward", "all")
        items.append(
            (name, [(row, counts[row] / 1e6, f"{counts[row] / 1e6:.0f} M") for row in rows])
        )
    charts = [
        bars(rows, title=f"BERT-{name}", top=120 * at, most=350, names=110)
        for at, (name, rows) in enumerate(items)
    ]
    return picture(460, 240, *charts)


def count(part: Any) -> int:
    modules = part if isinstance(part, list) else [part]
    return sum(weight.numel() for one in modules for weight in one.parameters())


def shapes(_: Draw) -> str:
    """The four ways to use one encoder, after the paper's figure 4."""
    kinds = (
        ("a text → a label", ["[CLS]", "text", "[SEP]"], {0: "label"}),
        ("two texts → a label", ["[CLS]", "text", "[SEP]", "text", "[SEP]"], {0: "label"}),
        (
            "each word → a tag",
            ["[CLS]", "Ada", "in", "Rome", "[SEP]"],
            {1: "PER", 2: "O", 3: "LOC"},
        ),
        (
            "a question → a span",
            ["[CLS]", "who?", "[SEP]", "it", "was", "Ada", "[SEP]"],
            {5: "start, end"},
        ),
    )
    parts = []
    for at, (title, tokens, answers) in enumerate(kinds):
        top, wide = 140 * at, 430 / max(7, len(tokens))
        left = 14 + (430 - wide * len(tokens)) / 2
        parts += [text(14, top + 14, title, 12, "ink", "start", 600)]
        parts += [box(left, top + 66, wide * len(tokens) - 6, 24, "encoder", "first", 0.18)]
        for place, token in enumerate(tokens):
            x = left + wide * place
            parts += [box(x, top + 104, wide - 6, 24, token, "edge", 0.08, 11)]
            parts += [arrow(x + wide / 2 - 3, top + 103, x + wide / 2 - 3, top + 92)]
            if place in answers:
                long = max(wide - 6, 7 * len(answers[place]) + 10)
                middle = x + wide / 2 - 3
                parts += [arrow(middle, top + 65, middle, top + 52)]
                parts += [box(middle - long / 2, top + 26, long, 24, answers[place], "second", 0.2)]
    return picture(460, 560, *parts)


def new_numbers(_: Draw) -> str:
    width, classes, tags = 768, 3, 9
    items = [
        ("3 classes", width * classes + classes),
        ("9 tags", width * tags + tags),
        ("start and end", 2 * width + 2),
    ]
    bar_items = [(name, float(number), f"{number:,}") for name, number in items]
    encoder = [("the encoder", 1.0, "109,482,240 (bar not to scale)")]
    return picture(
        460,
        150,
        bars(encoder, title="Already trained", width=340, names=110),
        bars(bar_items, title="New, not pre-trained", tone="second", top=62, names=110),
    )


def features(draw: Draw) -> str:
    """Logistic regression on the vectors of each of mini's layers: which package is meant?"""
    from bertworks.lab.demo import texts

    with tempfile.TemporaryDirectory() as folder:
        data = texts.write(Path(folder))
        probes = {
            pooling: [
                bw.probe(mini(), train=data.train, dev=data.dev, pooling=pooling, layers=[layer])
                for layer in range(5)
            ]
            for pooling in ("mean", "cls")
        }
    series: list[Mapping[str, Any]] = [
        {"name": pooling, "values": [one.metrics["accuracy"] for one in layer_probes]}
        for pooling, layer_probes in probes.items()
    ]
    series += [
        {
            "name": "most frequent label",
            "values": [one.metrics["majority"] for one in probes["cls"]],
            "dashed": True,
        }
    ]
    data_ = {
        "x": [str(one) for one in range(5)],
        "xName": "layer",
        "format": "formatPercent",
        "low": 0,
    }
    return draw("lines", data_ | {"series": series, "high": 1})


def table7(_: Draw) -> str:
    """The paper's table 7: dev F1 of CoNLL-2003."""
    rows = {
        "fine-tuned": 96.4,
        "last four, side by side": 96.1,
        "last four, weighted sum": 95.9,
        "second to last": 95.6,
        "all twelve, weighted sum": 95.5,
        "last": 94.9,
        "embeddings": 91.0,
    }
    items = [(name, value - 90, f"{value:.1f}") for name, value in rows.items()]
    note = text(450, 192, "bars begin at 90", 11, "soft", "end")
    return picture(460, 200, bars(items, title="F1 on dev", names=176), note)


SENTENCES = (
    "the river flows into the sea.",
    "the stream runs down to the ocean.",
    "she wrote three novels.",
    "her books were read by many.",
    "the army lost the battle.",
    "the troops were beaten in the fight.",
)


def sentences(draw: Draw) -> str:
    values = mini().similarity(SENTENCES, SENTENCES, pooling="mean")
    names = ["river", "stream", "novels", "books", "army", "troops"]
    data = {"rows": names, "columns": names, "values": values.tolist(), "showsNumbers": True}
    low = float(values.min())
    return draw("heat", data | {"low": low, "maxCellSize": 52}, 420)


def encoders(_: Draw) -> str:
    parts = [text(110, 16, "one text at a time", 12, "ink", "middle", 600)]
    for at, name in enumerate(("question", "text")):
        x = 20 + 100 * at
        parts += [box(x, 134, 84, 26, name, "edge", 0.08), arrow(x + 42, 133, x + 42, 116)]
        parts += [box(x, 88, 84, 26, "encoder"), arrow(x + 42, 87, x + 42, 72)]
        parts += [box(x, 46, 84, 24, "vector", "fourth", 0.2)]
    parts += [text(110, 36, "cosine", 12, "second"), text(350, 16, "both at once", 12, "ink")]
    parts += [box(262, 134, 176, 26, "question [SEP] text", "edge", 0.08)]
    parts += [arrow(350, 133, 350, 116), box(262, 88, 176, 26, "encoder")]
    parts += [arrow(350, 87, 350, 72), box(308, 46, 84, 24, "score", "second", 0.2)]
    parts += [text(110, 182, "vectors kept: millions of texts", 11, "soft")]
    parts += [text(350, 182, "each pair again: the best fifty", 11, "soft")]
    return picture(460, 192, *parts)


def length(draw: Draw) -> str:
    """Multiplications a token of BERT-base, in millions: what grows with the length."""
    lengths = (32, 64, 128, 256, 512, 1024, 2048)
    layers, width = 12, 768
    rest = (
        layers * 12 * width**2 / 1e6
    )  # query, key, value, output; up and down, four times as wide
    series = [
        {"name": "weights", "values": [rest] * len(lengths)},
        {"name": "attention", "values": [layers * 2 * n * width / 1e6 for n in lengths]},
    ]
    data = {"x": [str(n) for n in lengths], "xName": "tokens in the text", "low": 0}
    return draw("lines", data | {"series": series})


def padding(_: Draw) -> str:
    lengths = (4, 11, 6, 3, 8)
    parts = [text(4, 14, "padded: 55 places, 32 of them text", 12, "ink", "start", 600)]
    for row, n in enumerate(lengths):
        for column in range(max(lengths)):
            tone, strength = ("first", 0.3) if column < n else ("edge", 0.04)
            parts.append(box(4 + 20 * column, 24 + 20 * row, 16, 16, "", tone, strength))
    parts.append(text(4, 146, "packed: 32 places", 12, "ink", "start", 600))
    tones = ("first", "second", "third", "fourth", "faint")
    whole = [tone for tone, n in zip(tones, lengths, strict=True) for _ in range(n)]
    for column, tone in enumerate(whole):
        parts.append(box(4 + 20 * (column % 22), 156 + 20 * (column // 22), 16, 16, "", tone, 0.3))
    return picture(460, 200, *parts)


def concept_map(_: Draw) -> str:
    """What depends on what: a box is a lesson's idea, an arrow means “is needed for”."""
    nodes = {
        "vectors": (270, 20, "words as vectors", "1"),
        "pieces": (120, 80, "pieces", "5"),
        "context": (410, 80, "what context adds", "2"),
        "input": (120, 140, "token + position + segment", "4"),
        "attention": (410, 140, "attention", "3"),
        "encoder": (270, 200, "encoder: layers of both", "3"),
        "masks": (120, 260, "masked tokens", "4"),
        "next": (410, 260, "next sentences", "4"),
        "pretrain": (270, 320, "pre-training", "6"),
        "tune": (120, 380, "fine-tuning: four shapes", "7"),
        "features": (410, 380, "features", "8"),
        "search": (410, 440, "sentence vectors, search", "9"),
        "serve": (270, 500, "a served model: speed, length, size", "10"),
    }
    links = (
        "vectors-pieces vectors-context pieces-input context-attention input-encoder "
        "attention-encoder encoder-masks encoder-next masks-pretrain next-pretrain pretrain-tune "
        "pretrain-features features-search tune-serve search-serve"
    )
    parts = []
    for link in links.split():
        one, other = (nodes[name] for name in link.split("-"))
        parts.append(arrow(one[0], one[1] + 32, other[0], other[1]))
    for x, y, name, lesson in nodes.values():
        wide = 6.6 * len(name) + 40
        parts.append(box(x - wide / 2, y, wide, 32, "", "card", 1))
        parts.append(box(x - wide / 2, y, wide, 32, "", "first", 0.12))
        parts.append(text(x + 10, y + 20, name))
        parts.append(text(x - wide / 2 + 12, y + 20, lesson, 11, "second", "middle", 600))
    return picture(540, 540, *parts)


PICTURES: Mapping[str, Callable[[Draw], str]] = {
    "words-map": words_map,
    "words-cosines": words_cosines,
    "context-map": context_map,
    "context-layers": context_layers,
    "context-sides": context_sides,
    "attention-by-hand": attention_by_hand,
    "attention-heads": attention_heads,
    "attention-head": attention_head,
    "masks": masks,
    "input-sum": input_sum,
    "next-sentences": next_sentences,
    "pieces": pieces,
    "vocabulary-size": vocabulary_size,
    "loss": loss,
    "sizes": sizes,
    "shapes": shapes,
    "new-numbers": new_numbers,
    "features": features,
    "table7": table7,
    "sentences": sentences,
    "encoders": encoders,
    "length": length,
    "padding": padding,
    "concept-map": concept_map,
}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args(words)
    if unknown := sorted(set(options.names) - PICTURES.keys()):
        parser.error(f"no picture {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    with explorer() as draw:
        for name in options.names or PICTURES:
            (options.out / f"{name}.svg").write_text(PICTURES[name](draw), encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
