"""The data and runs of experiments; each run is made only once."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from ..analysis.probing import probe
from ..data.documents import read_documents
from ..data.prepare import prepare
from ..data.tables import read_rows
from ..errors import DataError, TrainingError
from ..inference.fingerprints import fingerprint
from ..loading import load
from ..nn.device import pick_device
from ..settings.keywords import ProbeKeywords, TaskKeywords
from ..text.vocabulary import train_vocabulary
from ..training.finetune import finetune
from ..training.pretrain import PretrainResult, pretrain
from ..utils.directories import make_directory
from ..utils.json_files import check_format_version, read_json, write_json
from ..utils.progress import Progress, say
from .demo import texts
from .demo.cycle import PRETRAINING, VOCABULARY_SIZE
from .finished_runs import RESULT, finish_run

if TYPE_CHECKING:
    import torch

Rows = list[dict[str, Any]]
Metrics = Mapping[str, float]

FORMAT_VERSION = 1
"""The format of all files of a lab's directory, recorded in its `lab.json`."""

STEPS = 500
"""Steps of a small pre-training: 20 seconds on one core."""

CHECKPOINT_STEPS = 5000
"""Steps between the checkpoints of a longer one, from which it resumes: some minutes."""


def merge_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some changed; of a group, only those in `changes` are."""
    result = dict(settings)
    for key, value in changes.items():
        is_group = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = {**result[key], **value} if is_group else value
    return result


class LabelledRows(NamedTuple):
    """Rows to learn from and to evaluate on; the name distinguishes them from others."""

    name: str
    train: Rows
    dev: Rows


class Lab:
    """A directory with the data, runs and results of experiments.

    Args:
        out: output directory; runs that exist in it are used again.
        data: directory with `wiki/` (a corpus) and `glue/sst2/` (labelled texts); if omitted,
            the docstrings of Python are used.
        model: the pre-trained model to examine.
        device: device to run on.
        progress: reports progress.

    Raises:
        TrainingError: `out` was started with another model or other data, or in another format.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        data: str | Path | None = None,
        model: str = "mini",
        device: torch.device | str = "auto",
        progress: Progress | None = None,
    ) -> None:
        self.out, self.name = Path(out), model
        self.data = None if data is None else Path(data)
        self.device, self.progress = pick_device(device), progress
        self.model = load(model, device=self.device)
        for part in ("claims", "runs", "images"):
            make_directory(self.out / part)
        mark = fingerprint(self.model.encoder, self.model.tokenizer)
        described = {"model": {model: mark}, "data": str(data or "docstrings of Python")}
        description = {"format_version": FORMAT_VERSION, **described}
        file = self.out / "lab.json"
        if not file.exists():
            write_json(file, description, indent=1)
            return
        previous, fix = read_json(file, TrainingError), "Give another --out."
        check_format_version(previous, FORMAT_VERSION, file, TrainingError, fix=fix)
        if previous != description:
            key = next(key for key in description if previous.get(key) != description[key])
            raise TrainingError(f"the lab was started with another {key}", where=str(out), fix=fix)

    @cached_property
    def _default_data(self) -> Path:
        """A directory with Python's docstrings: `corpus.txt`, `train.jsonl` and `dev.jsonl`."""
        folder = self.out / "text"
        if not (folder / "dev.jsonl").exists():  # the file that is written last
            say(self.progress, "collecting docstrings of Python")
            texts.write(folder)
        return folder

    @property
    def corpus(self) -> Path:
        """The path of the corpus."""
        return self._default_data / "corpus.txt" if self.data is None else self.data_path("wiki")

    @cached_property
    def paragraphs(self) -> list[str]:
        """The first 6,000 paragraphs of the corpus."""
        lines: list[str] = []
        for document in read_documents(self.corpus):
            lines += document.paragraphs
            if len(lines) >= 6000:
                break
        return lines[:6000]

    def prepared_corpus(self, *, by_model: bool = False) -> Path:
        """Prepare the corpus, by default with a vocabulary trained on it; return the directory."""
        out = self.out / ("prepared-by-model" if by_model else "prepared")
        if not (out / "manifest.json").exists():
            say(self.progress, "preparing the text")
            fresh = not by_model and train_vocabulary(self.paragraphs, size=VOCABULARY_SIZE)
            prepare([self.corpus], tokenizer=fresh or self.model.tokenizer, out=out)
        return out

    @cached_property
    def labelled(self) -> tuple[Rows, Rows]:
        """The labelled texts: training rows and dev rows."""
        at_hand = self.data is None
        folder = self._default_data if at_hand else self.data_path("glue/sst2")
        kind = "jsonl" if at_hand else "tsv"
        train, dev = (
            [dict(row.values) for row in read_rows(folder / f"{part}.{kind}")]
            for part in ("train", "dev")
        )
        return train, dev

    def data_path(self, path: str) -> Path:
        """Return the path of a file or directory of the data.

        Raises:
            DataError: it does not exist.
        """
        if self.data is None or not (self.data / path).exists():
            raise DataError(f"there is no {path}", where=str(self.data or "--data"))
        return self.data / path

    def sample(self, count: int, seed: int) -> Rows:
        """Return a random sample of the training rows."""
        rows = self.labelled[0]
        return random.Random(f"rows {seed}").sample(rows, min(count, len(rows)))

    def cached_run(
        self, kind: str, settings: Mapping[str, Any], make: Callable[[Path], Metrics]
    ) -> tuple[Path, Metrics]:
        """Make a run with some settings, if it does not exist; return its directory and metrics."""
        words = json.dumps(settings, sort_keys=True, default=str)
        run = self.out / "runs" / f"{kind}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"

        def measure(run: Path) -> Mapping[str, Any]:
            start = time.process_time()
            say(self.progress, f"{kind}: {words}")
            metrics = dict(make(run))
            cost = time.process_time() - start
            return {"settings": settings, "metrics": metrics, "seconds": cost}

        return run, finish_run(run, measure)["metrics"]

    def seconds(self, run: str = "*") -> float:
        """Return the processor time of a run, by its directory's name, or of all runs."""
        done = (self.out / "runs").glob(f"{run}/{RESULT}")
        return float(sum(read_json(file, DataError)["seconds"] for file in done))

    def pretrained(
        self, seed: int, *, by_model: bool = False, **changes: Any
    ) -> tuple[Path, Metrics]:
        """Pre-train a small model; return its run directory and its held-out metrics.

        Args:
            by_model: use the model's vocabulary.
            changes: settings of `pretrain` that differ from the lab's; a group may be partial.
        """
        settings = self._pretraining(seed, changes)

        def make(run: Path) -> Metrics:
            return self._pretrain(run, settings, by_model, self.progress).metrics

        return self.cached_run("pretrain", {**settings, "by_model": by_model}, make)

    def measure_step_time(self, *, by_model: bool = False, **changes: Any) -> float:
        """Measure the processor time of an update of such a pre-training, in seconds, once."""
        settings = self._pretraining(0, {**changes, "steps": 60})

        def make(run: Path) -> Metrics:
            clock = _Clock()
            self._pretrain(run, settings, by_model, clock)
            # The median: other work on the machine slows some updates.
            return {"seconds": statistics.median(map(sub, clock.times[11:], clock.times[10:-1]))}

        return self.cached_run("pace", {**settings, "by_model": by_model}, make)[1]["seconds"]

    def _pretrain(
        self, run: Path, settings: Mapping[str, Any], by_model: bool, progress: Progress | None
    ) -> PretrainResult:
        data = str(self.prepared_corpus(by_model=by_model))
        return pretrain(data=data, out=run, device=self.device, progress=progress, **settings)

    def _pretraining(self, seed: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the lab's settings of pre-training with some changes; None removes a setting."""
        settings: dict[str, Any] = {
            **{**PRETRAINING, "steps": STEPS, "initial_attention": "neighbours"},
            **{"tensorboard": False, "log_every": 100, "keep_checkpoints": 1},
            "held_out": {"documents": 0.05, "sequences": 300, "seed": 0},
        }
        settings = merge_settings(settings, changes)
        settings = {key: value for key, value in settings.items() if value is not None}
        steps = settings["steps"]
        often = min(steps, CHECKPOINT_STEPS)
        return settings | {"seed": seed, "eval_every": steps, "checkpoint_every": often}

    def finetuned_model(
        self,
        model: str | Path,
        seed: int,
        settings: TaskKeywords | None = None,
        *,
        rows: int = 1000,
    ) -> float:
        """Return the dev accuracy of a model fine-tuned on `rows` labelled texts."""
        all_settings: TaskKeywords = {
            "max_seq_length": 64,
            "learning_rate": 1e-3,
            "classifier_pooling": "mean",
            "reinitialize": False,
            **(settings or {}),
            "seed": seed,
        }
        data = LabelledRows(f"{rows} texts", self.sample(rows, seed), self.labelled[1])
        return self.finetuned_metrics(model, "classification", data, **all_settings)["accuracy"]

    def finetuned_metrics(
        self,
        model: str | Path,
        task: str,
        data: LabelledRows,
        **settings: Unpack[TaskKeywords],
    ) -> Metrics:
        """Return the dev metrics of a model fine-tuned for a task."""
        all_settings: TaskKeywords = {
            "batch_size": 16,
            "epochs": 4,
            "tensorboard": False,
            **settings,
        }

        def make(run: Path) -> Metrics:
            return finetune(
                str(model),
                task,
                train=data.train,
                dev=data.dev,
                out=run,
                device=self.device,
                progress=self.progress,
                **all_settings,
            ).metrics

        description = {"model": Path(model).name, "task": task, "data": data.name, **all_settings}
        return self.cached_run("finetune", description, make)[1]

    def probe_accuracy(
        self, model: str | Path, seed: int, **settings: Unpack[ProbeKeywords]
    ) -> float:
        """Return the dev accuracy of logistic regression on frozen vectors of 1,000 texts."""

        def make(_: Path) -> Metrics:
            held = self.model if model == self.name else load(model, device=self.device)
            train, dev = self.sample(1000, seed), self.labelled[1]
            return probe(held, train=train, dev=dev, **settings).metrics

        description = {"model": Path(model).name, "seed": seed, **settings}
        return self.cached_run("probe", description, make)[1]["accuracy"]


class _Clock(Progress):
    """Records the processor time, in seconds, at the end of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def train(self, *_: Any, **__: Any) -> None:
        self.times.append(time.process_time())
