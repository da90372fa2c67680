"""The whole cycle in minutes: text, vocabulary, pre-training, fine-tuning, predictions.

It calls only public functions, with settings small enough for two cores. It compares the result
with two baselines: always predicting the most frequent label, and the same network fine-tuned from
random weights. First, it shows predictions of the bundled model `mini`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...utils.formatting import format_duration
from ...utils.outputs import locked_output
from . import texts

if TYPE_CHECKING:
    from rich.console import Console

    from ...model import Model

VOCABULARY_SIZE = 4000
DEVICE = "cpu"  # its figures are the same on every machine

# The demo has two minutes and 2 MB of text, the paper four days and 3,300 million words. The
# differences from the paper speed up learning: more masked words per sequence, short sequences in
# small batches, larger initial weights (0.02 suits a width of 768; with a width of 128, learning
# starts slowly), a high learning rate, and no dropout.
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

QUICK: Mapping[str, Any] = {"steps": 300, "eval_every": 300, "checkpoint_every": 300}
QUICK_FINETUNING: Mapping[str, Any] = {"epochs": 1}

FACTS = (
    "it is one of the largest cities in the united [MASK].",
    "the river flows into the [MASK].",
    "he was born in 1950 in new [MASK].",
)
SENTENCES = (
    "the war ended in 1945.",
    "after it, the city was built again.",
    "the frog lives in trees near streams.",
)

QUESTIONS = (
    "raise an [MASK] if the key is not found.",
    "return [MASK] if the two objects are equal.",
    "the module [MASK] a class for reading files.",
    "a [MASK] of strings",
)


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo.

    Attributes:
        held_out_loss: the masked-word loss before and after pre-training.
        majority: the share of the most frequent label among the held-out rows.
        without_pretraining: held-out accuracy of the network fine-tuned from random weights.
        with_pretraining: held-out accuracy of the network that was pre-trained.
        standard_error: of the difference of these accuracies, paired by row.
        report: the report of the pre-training run.
        seconds: the total time.
    """

    held_out_loss: tuple[float, float]
    majority: float
    without_pretraining: float
    with_pretraining: float
    standard_error: float
    report: Path
    seconds: float

    @property
    def beats_both(self) -> bool:
        """Whether the pre-trained network is better than both baselines."""
        return self.with_pretraining > max(self.majority, self.without_pretraining)

    @property
    def is_clear(self) -> bool:
        """Whether the gain by pre-training exceeds two standard errors."""
        return self.with_pretraining - self.without_pretraining > 2 * self.standard_error


_MARKS = ("data/*corpus.txt*", "quick/data/*corpus.txt*")


def run_demo(
    out: str | Path,
    *,
    seed: int = 1,
    quick: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> DemoResult:
    """Run the whole cycle, and describe it.

    Args:
        out: the output directory. The same call again resumes where it stopped.
        seed: of the split of the labelled rows, the weights and the order of the data.
        quick: train only for seconds, to check that everything works; accuracies mean little.
        overwrite: delete an existing output, and start again.
        console: where to print; standard output if omitted.

    Raises:
        SettingsError: the seed is not one of a training run.
        BertworksError: a stage failed.
    """
    from rich.console import Console

    from ...training.settings import TrainingSettings

    TrainingSettings.parse({"seed": seed})  # before the first stage, which takes long

    with locked_output(out, kind="directory", overwrite=overwrite, marks=_MARKS):
        place = Path(out) / "quick" if quick else Path(out)
        return _Demo(place, seed, quick, console or Console(highlight=False)).run()


class _Demo:
    """The stages, in order; each writes its results to the directory."""

    def __init__(self, out: Path, seed: int, quick: bool, console: Console) -> None:
        self.out, self.seed, self.quick, self.console = out, seed, quick, console
        self.start = time.perf_counter()

    def run(self) -> DemoResult:
        self.show_mini()
        data = self.collect()
        rows = [json.loads(line) for line in data.dev.read_text(encoding="utf-8").splitlines()]
        self.prepare(data)
        loss = self.pretrain()
        self.fill_in()
        pretrained, random = (
            self.finetune(data, rows, pretrained=pretrained) for pretrained in (True, False)
        )
        labels = [row["label"] for row in rows]
        # For each row: 1 if only the pre-trained network is right, -1 if only the other is.
        gains = [one - other for one, other in zip(pretrained, random, strict=True)]
        mean = sum(gains) / len(gains)
        result = DemoResult(
            held_out_loss=loss,
            majority=max(map(labels.count, data.labels)) / len(labels),
            without_pretraining=sum(random) / len(rows),
            with_pretraining=sum(pretrained) / len(rows),
            standard_error=math.sqrt(sum((gain - mean) ** 2 for gain in gains)) / len(gains),
            report=self.out / "pretrained" / "report.html",
            seconds=time.perf_counter() - self.start,
        )
        self.compare(result)
        self.predict(rows[:5])
        self.close(result)
        return result

    def show_mini(self) -> None:
        """Show predictions of the bundled model."""
        from ...loading import load

        self.heading("0", "mini: a small BERT that comes with the package")
        model = load("mini", device=DEVICE)
        self.fill(model, FACTS)
        first, *others = SENTENCES
        self.say(f"“{first}” Does each of these follow?")
        for other in others:
            self.say(f"    {model.next_sentence(first, other):4.0%}  {other}")

    def fill(self, model: Model, questions: Sequence[str]) -> None:
        """Show the most probable words for each mask."""
        for question in questions:
            for guesses in model.fill_mask(question, top_k=4):
                words = "  ".join(f"{x['token']} {x['probability']:.0%}" for x in guesses)
                self.say(question, f"    {words}")

    def collect(self) -> texts.DemoData:
        """Write text and labelled rows from Python's documentation."""
        self.heading("1", "Text that comes with Python")
        data = texts.write(self.out / "data", seed=self.seed)
        self.say(
            f"{data.num_documents} documents, {data.num_characters / 1e6:.1f} MB: the language "
            "reference (pydoc_data.topics), and the",
            "docstrings and comments of the standard library.",
            f"{data.num_train + data.num_dev:,} docstrings, labelled with the package that they "
            f"document; {data.num_dev} are held out,",
            "also from pre-training. Example:",
        )
        first = json.loads(data.dev.read_text(encoding="utf-8").partition("\n")[0])
        self.say(f"  {first['label']:<9} {_clip(first['text'], 62)}")
        return data

    def prepare(self, data: texts.DemoData) -> None:
        """Train a vocabulary, and convert the corpus to token ids."""
        from ...data.documents import read_documents
        from ...data.prepare import prepare
        from ...text.vocabulary import train_vocabulary

        self.heading("2", "Vocabulary and token ids")
        paragraphs = (line for doc in read_documents(data.corpus) for line in doc.paragraphs)
        tokenizer = train_vocabulary(paragraphs, size=VOCABULARY_SIZE)
        manifest = prepare(data.corpus, tokenizer=tokenizer, out=self.out / "prepared")
        pieces = tokenizer.tokens(tokenizer.piece_ids(["Deserialize the bytearrays."])[0])
        self.say(
            f"{tokenizer.vocab_size:,} pieces; {manifest.sentences:,} sentences, "
            f"{manifest.tokens:,} tokens, {manifest.unknown_rate:.2%} of them unknown.",
            f"“Deserialize the bytearrays.” becomes {' '.join(pieces)}",
        )

    def pretrain(self) -> tuple[float, float]:
        """Pre-train; return the held-out masked-word loss before and after."""
        from ...training.pretrain import pretrain
        from ...utils.progress import Progress

        self.heading("3", "Pre-training: masked words and next sentences")
        result = pretrain(
            data=str(self.out / "prepared"),
            out=self.out / "pretrained",
            device=DEVICE,
            progress=Progress(),
            **{"seed": self.seed, **PRETRAINING, **(QUICK if self.quick else {})},
        )
        measured = [line["metrics"] for line in result.run.lines() if line["kind"] == "eval"]
        first, last = measured[0], measured[-1]
        self.say(
            "On held-out documents, before and after:",
            f"  masked-word loss          {first['mlm_loss']:7.3f}  → {last['mlm_loss']:7.3f}",
            f"  masked-word accuracy      {first['mlm_accuracy']:7.1%}  → "
            f"{last['mlm_accuracy']:7.1%}",
            f"  next-sentence accuracy    {first['nsp_accuracy']:7.1%}  → "
            f"{last['nsp_accuracy']:7.1%}   (majority {last['nsp_majority']:.1%})",
        )
        return first["mlm_loss"], last["mlm_loss"]

    def fill_in(self) -> None:
        """Show the pre-trained network's predictions for masked words."""
        from ...loading import load

        self.heading("4", "Predictions for masked words")
        self.fill(load(self.out / "pretrained", device=DEVICE), QUESTIONS)

    def finetune(
        self, data: texts.DemoData, rows: Sequence[Mapping[str, str]], *, pretrained: bool
    ) -> list[bool]:
        """Fine-tune from pre-trained or random weights; return which held-out rows are right."""
        from ...training.finetune import finetune
        from ...utils.progress import Progress

        name = "pre-trained" if pretrained else "random"
        self.heading("5" if pretrained else "6", f"Fine-tuning from {name} weights")
        result = finetune(
            self.out / "pretrained",
            train=data.train,
            dev=data.dev,
            out=self.out / ("finetuned" if pretrained else "finetuned-from-random"),
            device=DEVICE,
            progress=Progress(),
            seed=self.seed,
            reinitialize=not pretrained,
            **{**FINETUNING, **(QUICK_FINETUNING if self.quick else {})},
        )
        answers = result.model.predict([row["text"] for row in rows])
        return [answer["label"] == row["label"] for answer, row in zip(answers, rows, strict=True)]

    def compare(self, result: DemoResult) -> None:
        """Show the three accuracies."""
        self.heading("7", "Which package does a docstring document?  Held-out accuracy")
        for name, share in (
            ("always the most frequent label", result.majority),
            ("fine-tuned, not pre-trained", result.without_pretraining),
            ("pre-trained, then fine-tuned", result.with_pretraining),
        ):
            self.say(f"{name:<30} {share:6.1%}  {'█' * round(30 * share)}")

    def predict(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Show a few held-out docstrings, and the model's predictions."""
        from ...loading import load

        self.heading("8", "Predictions for held-out docstrings")
        model = load(self.out / "finetuned", device=DEVICE)
        for row, prediction in zip(rows, model.predict([row["text"] for row in rows]), strict=True):
            label = prediction["label"]
            mark = "✓" if label == row["label"] else f"✗ ({row['label']})"
            probability = prediction["probabilities"][label]
            self.say(f"{label:<9} {probability:4.0%} {mark}  {_clip(row['text'], 52)}")

    def close(self, result: DemoResult) -> None:
        """Show the conclusion, and commands to try next."""
        points = 100 * (result.with_pretraining - result.without_pretraining)
        difference = f"{points:+.1f} points ± {100 * result.standard_error:.1f} (standard error)"
        if self.quick:
            verdict = (
                "Everything works. After only seconds of training, the accuracies mean little."
            )
        elif not result.beats_both:
            verdict = f"Pre-training did NOT beat both baselines this time: {difference}."
        elif result.is_clear:
            verdict = f"Pre-training helped: {difference}."
        else:
            verdict = f"Pre-training is ahead by less than two standard errors: {difference}."
        self.console.print(
            f"\n[bold]{verdict}[/bold]  ({format_duration(result.seconds)} in total)"
        )
        self.say(
            f"Look at the report:  {result.report}",
            f"Try it yourself:     bertworks fill-mask {self.out / 'pretrained'} "
            '"a [MASK] of bytes"',
            f'                     bertworks predict {self.out / "finetuned"} "Close the window."',
        )

    def heading(self, number: str, title: str) -> None:
        """Print the heading of a stage."""
        self.console.print(f"\n[bold]{number}  {title}[/bold]")

    def say(self, *lines: str) -> None:
        """Print indented lines of text."""
        for line in lines:
            self.console.print(f"   {line}", markup=False, soft_wrap=True)


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
