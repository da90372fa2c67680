"""The whole cycle in minutes: text, vocabulary, pre-training, fine-tuning, predictions.

It calls the public functions and nothing else, with settings small enough for two cores, and
compares what comes of it with two baselines: always giving the commonest label, and the same
network, fine-tuned alike, that was not pre-trained.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..locks import claim
from ..wording import duration
from . import texts

if TYPE_CHECKING:
    from rich.console import Console

VOCABULARY_SIZE = 4000

# Two minutes and 2 MB of text are not four days and 3,300 million words. Where this differs from
# the paper, it is to learn what can be learned in the time: more masked words a sequence, short
# sequences in small batches, larger initial weights (0.02 is made for 768 wide, and a network of
# 128 idles on it for long), a high learning rate, and no dropout.
PRETRAINING: Mapping[str, Any] = {
    "model": {
        "size": "tiny",
        "num_attention_heads": 8,
        "initializer_range": 0.05,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "steps": 6000,
    "batch_size": 20,
    "phases": [{"max_seq_length": 48}],
    "masking": {"mlm_probability": 0.4},
    "instances": {"next_sentence_balance": "exact"},
    "learning_rate": 2e-3,
    "betas": [0.9, 0.98],
    "warmup": 0.1,
    "held_out": {"documents": 0.05, "sequences": 500},
    "log_every": 25,
    "eval_every": 1000,
    "checkpoint_every": 1000,
}

FINETUNING: Mapping[str, Any] = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 2e-3,
    "max_seq_length": 128,
}

QUESTIONS = (
    "raise an [MASK] if the key is not found.",
    "return [MASK] if the two objects are equal.",
    "the module [MASK] a class for reading files.",
    "a [MASK] of strings",
)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        held_out_loss: of masked words, before and after pre-training.
        majority: the share of the commonest label among the held-out rows.
        without_pretraining: held-out accuracy of the network that began at random.
        with_pretraining: held-out accuracy of the network that was pre-trained.
        report: the page about the pre-training run.
        seconds: what everything took.
    """

    held_out_loss: tuple[float, float]
    majority: float
    without_pretraining: float
    with_pretraining: float
    report: Path
    seconds: float

    @property
    def beats_both(self) -> bool:
        """Whether pre-training was worth it here."""
        return self.with_pretraining > max(self.majority, self.without_pretraining)


def run_demo(out: str | Path, *, seed: int = 1, console: Console | None = None) -> DemoResult:
    """Run the whole cycle, and tell of it.

    Args:
        out: the directory for everything that is made. Run again, it goes on where it stopped.
        seed: of the split of the labelled rows, the weights and the order of the data.
        console: where to tell; standard output if left out.

    Raises:
        BertworksError: a stage failed.
    """
    from rich.console import Console

    with claim(out, kind="directory"):
        return _Demo(Path(out), seed, console or Console(highlight=False)).run()


class _Demo:
    """The stages, in order; each leaves what it makes in the directory."""

    def __init__(self, out: Path, seed: int, console: Console) -> None:
        self.out, self.seed, self.console = out, seed, console
        self.start = time.perf_counter()

    def run(self) -> DemoResult:
        data = self.collect()
        self.prepare(data)
        loss = self.pretrain()
        self.fill_in()
        accuracies = [self.finetune(data, pretrained=known) for known in (True, False)]
        majority = self.majority(data)
        self.compare(majority, *accuracies)
        self.predict(data)
        result = DemoResult(
            held_out_loss=loss,
            majority=majority,
            without_pretraining=accuracies[1],
            with_pretraining=accuracies[0],
            report=self.out / "pretrained" / "report.html",
            seconds=time.perf_counter() - self.start,
        )
        self.close(result)
        return result

    def collect(self) -> texts.DemoData:
        """Text and labelled rows, from what Python itself carries."""
        self.heading("1", "Text that every Python carries")
        data = texts.write(self.out / "data", seed=self.seed)
        self.say(
            f"{data.num_documents} documents, {data.num_characters / 1e6:.1f} MB: the language "
            "reference (pydoc_data.topics), and the",
            "docstrings and comments of the standard library.",
            f"{data.num_train + data.num_dev:,} docstrings labelled by the package they "
            f"document; {data.num_dev} of them are held out,",
            "from pre-training too. E.g.:",
        )
        first = json.loads(data.dev.read_text(encoding="utf-8").partition("\n")[0])
        self.say(f"  {first['label']:<9} {_clip(first['text'], 62)}")
        return data

    def prepare(self, data: texts.DemoData) -> None:
        """A vocabulary, and the corpus as token ids."""
        from ..corpus.prepare import prepare
        from ..corpus.readers import read_documents
        from ..text.vocabulary import train_vocabulary

        self.heading("2", "Vocabulary and token ids")
        paragraphs = (line for doc in read_documents(data.corpus) for line in doc.paragraphs)
        tokenizer = train_vocabulary(paragraphs, size=VOCABULARY_SIZE)
        manifest = prepare(data.corpus, tokenizer=tokenizer, out=self.out / "prepared")
        pieces = tokenizer.tokens(tokenizer.piece_ids(["Deserialize the bytearrays."])[0])
        self.say(
            f"{tokenizer.vocab_size:,} pieces; {manifest.sentences:,} sentences, "
            f"{manifest.tokens:,} tokens, {manifest.unknown_rate:.2%} of them unknown.",
            f"“Deserialize the bytearrays.” is {' '.join(pieces)}",
        )

    def pretrain(self) -> tuple[float, float]:
        """Masked words and next sentences; the held-out loss before and after."""
        from ..training.pretrain import pretrain
        from ..training.progress import Progress

        self.heading("3", "Pre-training: masked words and next sentences")
        result = pretrain(
            data=str(self.out / "prepared"),
            out=self.out / "pretrained",
            progress=Progress(),
            seed=self.seed,
            **PRETRAINING,
        )
        measured = [line["metrics"] for line in result.run.lines() if line["kind"] == "eval"]
        first, last = measured[0], measured[-1]
        self.say(
            "On held-out documents, before and after:",
            f"  loss of masked words      {first['mlm_loss']:7.3f}  → {last['mlm_loss']:7.3f}",
            f"  masked words guessed      {first['mlm_accuracy']:7.1%}  → "
            f"{last['mlm_accuracy']:7.1%}",
            f"  next sentences predicted  {first['nsp_accuracy']:7.1%}  → "
            f"{last['nsp_accuracy']:7.1%}   (majority {last['nsp_majority']:.1%})",
        )
        return first["mlm_loss"], last["mlm_loss"]

    def fill_in(self) -> None:
        """What the pre-trained network says where a word is masked."""
        from ..api import load

        self.heading("4", "Fill-ins")
        model = load(self.out / "pretrained", device="cpu")
        for question in QUESTIONS:
            for guesses in model.fill_mask(question, top_k=4):
                told = "  ".join(f"{x['token']} {x['probability']:.0%}" for x in guesses)
                self.say(f"{question}", f"    {told}")

    def finetune(self, data: texts.DemoData, *, pretrained: bool) -> float:
        """Held-out accuracy after fine-tuning, from the pre-trained weights or from random ones."""
        from ..training.finetune import finetune
        from ..training.progress import Progress

        name = "pre-trained" if pretrained else "random"
        self.heading("5" if pretrained else "6", f"Fine-tuning from {name} weights")
        result = finetune(
            self.out / "pretrained",
            train=data.train,
            dev=data.dev,
            out=self.out / ("finetuned" if pretrained else "finetuned-from-random"),
            device="cpu",
            progress=Progress(),
            seed=self.seed,
            reinitialize=not pretrained,
            **FINETUNING,
        )
        return result.metrics["accuracy"]

    def majority(self, data: texts.DemoData) -> float:
        """What always giving the commonest label would reach on the held-out rows."""
        lines = data.dev.read_text(encoding="utf-8").splitlines()
        labels = [json.loads(line)["label"] for line in lines]
        return max(map(labels.count, data.labels)) / len(labels)

    def compare(self, majority: float, known: float, random: float) -> None:
        """The three accuracies, side by side."""
        self.heading("7", "Which package does a docstring document?  Held-out accuracy")
        for name, share in (
            ("always the commonest label", majority),
            ("fine-tuned, not pre-trained", random),
            ("pre-trained, then fine-tuned", known),
        ):
            self.say(f"{name:<30} {share:6.1%}  {'█' * round(30 * share)}")

    def predict(self, data: texts.DemoData) -> None:
        """A few held-out docstrings, and what the model says of them."""
        from ..api import load

        self.heading("8", "Predictions for held-out docstrings")
        lines = data.dev.read_text(encoding="utf-8").splitlines()[:5]
        rows = [json.loads(line) for line in lines]
        model = load(self.out / "finetuned", device="cpu")
        for row, said in zip(rows, model.predict([row["text"] for row in rows]), strict=True):
            label = said["label"]
            mark = "✓" if label == row["label"] else f"✗ ({row['label']})"
            self.say(
                f"{label:<9} {said['probabilities'][label]:4.0%} {mark}  {_clip(row['text'], 52)}"
            )

    def close(self, result: DemoResult) -> None:
        """How it went, and where to go on."""
        if result.beats_both:
            verdict = "Pre-training was worth it: it beats both baselines."
        else:
            verdict = "Pre-training did NOT beat both baselines this time."
        self.console.print(f"\n[bold]{verdict}[/bold]  ({duration(result.seconds)} in all)")
        self.say(
            f"Look at the report:  {result.report}",
            f"Try it yourself:     bertworks fill-mask {self.out / 'pretrained'} "
            '"a [MASK] of bytes"',
            f'                     bertworks predict {self.out / "finetuned"} "Close the window."',
        )

    def heading(self, number: str, title: str) -> None:
        """What comes next."""
        self.console.print(f"\n[bold]{number}  {title}[/bold]")

    def say(self, *lines: str) -> None:
        """Lines of text, set in a little."""
        for line in lines:
            self.console.print(f"   {line}", markup=False, soft_wrap=True)


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
