"""Inspect, convert and change checkpoints: `inspect`, `convert`, `quantize`, `distil`,
`add-tokens`, `shrink`, `extend`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import DataError, SettingsError
from ..settings import literals
from ..utils.formatting import format_count
from ..utils.progress import Progress
from .application import verb
from .corpus_options import Corpus, CorpusInput, show_read_counts
from .devices import DeviceOption
from .display import JsonDisplay, TextDisplay
from .models import AdaptedModel, ModelSource, PlainModel, TaskModel
from .options import Overwrite, SettingsOption
from .outputs import output
from .texts import Column

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..analysis.inspection import Inspection
    from ..data.text_inputs import Texts
    from ..model import Model

Out = Annotated[str, typer.Option(metavar="DIR", help="Output directory.")]


@verb("inspect", "bertworks inspect runs/tickets", "bertworks inspect bert-base-uncased --json")
def inspect(model: AdaptedModel, *, tensors: bool = False, display: JsonDisplay) -> None:
    """Show a checkpoint's contents, and how each tensor is used.

    Args:
        tensors: List every tensor that is used.
    """
    from ..analysis.inspection import inspect as inspect_checkpoint

    inspection = inspect_checkpoint(model.name, base=model.base, adapter=model.adapter)
    display.json(asdict(inspection))
    display.facts(_inspection_facts(inspection))
    display.text("")
    display.table(
        ("parameters", "count"),
        [(part, f"{count:,}") for part, count in inspection.parameters.items()],
        right="count",
    )
    names, reasons = inspection.used_tensors, inspection.dropped_tensors
    display.text(f"{len(names)} tensors used, {len(reasons)} dropped")
    display.text(*(f"  used     {name}" for name in names if tensors))
    display.text(*(f"  dropped  {name}: {reason}" for name, reason in reasons.items()))
    for name, count in inspection.non_finite.items():
        display.text(f"  not finite  {name}: {count:,} × NaN or infinity")


def _inspection_facts(inspection: Inspection) -> dict[str, object]:
    geometry, vocabulary = inspection.geometry, inspection.vocabulary
    special = (vocabulary.get(role) for role in ("pad", "unk", "cls", "sep", "mask"))
    return {
        "family": inspection.family,
        "task": inspection.task or "none: a bare encoder",
        "heads": ", ".join(inspection.heads) or "none",
        "geometry": f"{format_count(geometry['num_hidden_layers'], 'layer')}, "
        f"{geometry['hidden_size']} wide, {geometry['num_attention_heads']} heads, "
        f"feed-forward {geometry['intermediate_size']}, {geometry['hidden_act']}",
        "positions": geometry["max_position_embeddings"] - geometry["position_offset"],
        "vocabulary": f"{vocabulary['size']:,} pieces, {vocabulary['kind']}, "
        f"{vocabulary['casing']}, {vocabulary['unused']:,} unused",
        "special": " ".join(str(piece) for piece in special if piece is not None),
        "dtype": ", ".join(f"{count} × {name}" for name, count in inspection.dtypes.items()),
        "license": inspection.license or "not named",
        "engine": inspection.engine,
    }


@verb("convert", "bertworks convert uncased_L-12_H-768_A-12 bert-base --to hf")
def convert(
    model: TaskModel,
    target: str,
    *,
    to: Literal["hf", "safetensors", "onnx", "tensorflow"] = "hf",
    precision: literals.SavedPrecision = "fp32",
    overwrite: Overwrite = False,
    display: TextDisplay,
) -> None:
    """Write a checkpoint in another layout.

    In fp32, the weights are unchanged, bit for bit.

    Args:
        target (DST): Output directory.
        to: hf and safetensors are the same layout; tensorflow is that of the original release.
        precision: Precision of the weights (hf only): bf16 halves the file size; for int8 see
            quantize.
    """
    if precision != "fp32" and to not in ("hf", "safetensors"):
        raise SettingsError(
            f"--precision {precision} is not supported with --to {to}", fix="Leave it out."
        )
    missing: list[str] = []
    with output(target, model=model, kind="whole directory", overwrite=overwrite):
        loaded_model = model.load("cpu")
        if to == "tensorflow":
            from ..convert.export import missing_settings, write_tensorflow

            directory = write_tensorflow(loaded_model, target, overwrite=overwrite)
            missing = missing_settings(loaded_model, directory)
        elif to == "onnx":
            from ..convert.export import write_onnx

            directory = write_onnx(loaded_model, target, overwrite=overwrite)
        else:
            directory = loaded_model.save(target, precision=precision, overwrite=overwrite)
    facts = {"not written": f"{', '.join(missing)}: the layout has no place"} if missing else {}
    display.facts({**facts, "written to": directory})


@verb(
    "quantize",
    "bertworks quantize runs/tickets --out tickets-int8 --data dev.tsv",
    "bertworks quantize MODEL --out model-int8 --calibrate a.txt --texts b.txt",
)
def quantize(
    model: TaskModel,
    *,
    out: Out,
    calibrate: Path | None = None,
    texts: Path | None = None,
    data: Path | None = None,
    overwrite: Overwrite = False,
    display: TextDisplay,
) -> None:
    """Write a model with 8-bit weights; compare it with float32.

    The matrices of the layers take one byte per weight, everything else two. All verbs can load
    the result. With precision=int8, computation uses 8-bit numbers too, as for the source model.
    --calibrate fixes the scales, with a few hundred texts like those to be read: faster, with about
    the same error. The comparison runs the written model with precision=int8.

    Args:
        calibrate (FILE): Texts to calibrate fixed scales with, one per line.
        texts (FILE): Texts whose vectors are compared, one per line.
        data (FILE): Labelled rows to compare the task's metric on.
    """
    with output(
        out,
        [calibrate, texts, data],
        model=model,
        kind="whole directory",
        overwrite=overwrite,
        repeats=texts is not None or data is not None,
    ) as replaces:
        fp32_model = model.load("cpu")
        # Before anything is written: a table that cannot be used leaves no model.
        vectors = None if texts is None else fp32_model.embed(data=texts, precision="fp32")
        fp32 = None if data is None else fp32_model.evaluate(data, precision="fp32")
        if calibrate is not None:
            fp32_model.calibrate(data=calibrate)
        directory = fp32_model.save(out, precision="int8", overwrite=replaces)
    int8_model = ModelSource(str(directory), task=model.task).load("cpu")
    facts: dict[str, object] = {}
    if vectors is not None:
        cosines = _cosines(vectors, int8_model.embed(data=texts, precision="int8"))
        facts["cosine"] = f"{cosines.min():.5f} at worst, {cosines.mean():.5f} on average"
    if data is not None and fp32 is not None:
        int8_metrics = int8_model.evaluate(data, precision="int8").metrics
        assert fp32_model.task is not None  # evaluate() needs it
        metric = fp32_model.task.best_metric
        facts[metric] = f"{int8_metrics[metric]:.4f}, before {fp32.metrics[metric]:.4f}"
    weights = sum(file.stat().st_size for file in Path(directory).glob("*.safetensors")) / 1e6
    fp32_weights = 4 * fp32_model.num_parameters / 1e6
    facts["weights"] = f"{weights:,.1f} MB, {fp32_weights:,.1f} in float32"
    display.facts({**facts, "written to": directory})


def _cosines(vectors: Any, others: Any) -> NDArray[np.float32]:
    """The cosine of two models' vectors of each text; of each token, for late interaction."""
    import numpy as np

    from ..inference.similarity import similarities

    if isinstance(vectors, list):
        vectors, others = np.concatenate(vectors), np.concatenate(others)
    rows = [slice(row, row + 1) for row in range(vectors.shape[0])]
    return np.array([similarities(vectors[row], others[row]).item() for row in rows])


@verb(
    "distil",
    "bertworks distil static sentence-transformers/all-MiniLM-L6-v2 \\\n      --out minilm-static"
    " --data texts.txt",
    "bertworks distil static MODEL --out small --words words.txt width=128",
)
def distil(
    ctx: typer.Context,
    what: Literal["static"],  # noqa: ARG001  (there is one kind)
    model: PlainModel,
    *,
    out: Out,
    words: str | None = None,
    data: str | None = None,
    column: Column = None,
    vectors: str | None = None,
    overwrite: Overwrite = False,
    settings: SettingsOption,
    device: DeviceOption = "auto",
    display: TextDisplay,
) -> None:
    """Make a small and fast model from a sentence encoder.

    static runs each piece of the vocabulary through the model, once. The result is some hundred
    times as fast as the model, but knows no context. model2vec and sentence-transformers open it.
    With --data, its vectors of these texts are then fitted to the model's. If interrupted, the
    same command resumes.

    Args:
        what (WHAT): static: a table of vectors, whose means are the vectors of texts.
        words (FILE): Words that become pieces too: .txt with one per line, or a table.
        data (FILE): Texts to train on: .txt with one per line, or a table.
        vectors (FILE): The model's vectors of the texts: a .npy file that is written, or that an
            earlier command wrote; DIR.teacher.npy if omitted, removed at the end.
    """
    from ..convert.static_distillation import distil_static
    from ..convert.static_settings import StaticTrainingSettings
    from ..data.reading import TableOptions
    from ..data.text_inputs import read_texts, read_words
    from ..inference.window_files import manifest_path, remove_file

    training_settings, settings = StaticTrainingSettings.split(settings)
    table, settings = TableOptions.split(settings)
    if data is None:
        for name, value in {"column": column, "vectors": vectors}.items():
            if value is not None:
                ctx.fail(f"--{name} needs --data FILE.")
        for name, value in {**training_settings, **table}.items():
            raise SettingsError(f"{name}={value} does nothing without texts", fix="Give --data.")
    is_temporary = data is not None and vectors is None
    if is_temporary and not overwrite and os.path.isdir(out):
        left = _teacher_file(out, None)
        if _is_older(manifest_path(left), Path(out)):
            remove_file(left)  # the command was killed after it had written the model
    with output(out, [words, data], model=model, kind="whole directory", overwrite=overwrite):
        new_words = [] if words is None else [*read_words(words).values()]
        texts = None if data is None else read_texts(data, column=column, **table).without_blank()
        teacher = model.load(device)
        small = distil_static(teacher, new_words, **settings)
        facts: dict[str, object] = {}
        if texts is not None:
            vectors_file = _teacher_file(out, vectors)
            small, facts = _train_static(
                small, teacher, texts, vectors_file, overwrite and is_temporary, training_settings
            )
        directory = small.save(out, overwrite=overwrite)
        if is_temporary:
            remove_file(vectors_file)
    display.facts(
        {
            "pieces": f"{small.tokenizer.vocab_size:,}",
            "width": f"{small.encoder.config.hidden_size:,}",
            "parameters": f"{small.num_parameters:,} of {teacher.num_parameters:,}",
            **facts,
            "written to": directory,
        }
    )


def _is_older(file: Path, model: Path) -> bool:
    """Whether a file was written before the files of a model."""
    times = (one.stat().st_mtime_ns for one in model.iterdir())
    return file.exists() and file.stat().st_mtime_ns <= max(times, default=0)


def _teacher_file(out: str, vectors: str | None) -> Path:
    """The file of the teacher's vectors.

    Raises:
        DataError: its name does not end in .npy.
    """
    if vectors is None:
        directory = Path(out).resolve()
        return directory.with_name(f"{directory.name}.teacher.npy")
    if not vectors.endswith(".npy"):
        raise DataError("vectors of a teacher are in a .npy file", where=vectors)
    return Path(vectors)


def _train_static(
    student: Model,
    teacher: Model,
    texts: Texts,
    vectors_file: Path,
    overwrite: bool,
    settings: dict[str, Any],
) -> tuple[Model, dict[str, object]]:
    """Train a static model on the vectors of its teacher, which are written to a file first.

    Returns:
        The trained model, and facts for the user.
    """
    import numpy as np

    from ..convert.static_training import train_static

    if not texts.is_repeatable:
        raise DataError("texts to train on are read twice", where="--data -", fix="Give a file.")
    with Progress() as progress:
        embeddings = teacher.embed_to(
            vectors_file,
            texts,
            normalize=True,
            overwrite=overwrite,
            progress=progress.counter("teacher", "texts"),
        )
        training = train_static(
            student,
            texts,
            np.load(vectors_file, mmap_mode="r"),
            progress=progress.counter("training", "iterations"),
            **settings,
        )
    counts = f"{training.num_texts:,} trained on"
    if training.num_unknown:
        counts += f", {training.num_unknown:,} without known pieces"
    if embeddings.num_truncated:
        counts += f", {embeddings.num_truncated:,} truncated to the length of the model"
    facts: dict[str, object] = {"texts": counts}
    if training.cosines is not None:
        untrained, trained = training.cosines
        facts["cosine"] = (
            f"{trained:.3f} with the model's vectors of other texts, {untrained:.3f} untrained"
        )
    return training.model, facts


@verb(
    "add-tokens",
    "bertworks add-tokens bert-base-uncased words.txt --out bert-base-domain",
)
def add_tokens(
    model: PlainModel,
    file: str,
    *,
    column: str | None = None,
    out: Out,
    overwrite: Overwrite = False,
    settings: SettingsOption,
    display: TextDisplay,
) -> None:
    """Add words to the vocabulary; each new vector starts as the mean of its old pieces.

    Each word is then tried in a text: one that would never be found is an error.

    Args:
        file (FILE): Words: .txt with one per line, or a table.
        column (NAME): Word column of a table; if omitted, `word`, `token`, `term` or the only one.
    """
    from ..convert.model_editing import add_tokens as add
    from ..data.text_inputs import read_words

    with output(out, [file], model=model, kind="whole directory", overwrite=overwrite):
        words = read_words(file, column=column, **settings)
        result = add(model.load("cpu"), words.values(), where=[*words])
        directory = result.model.save(out, overwrite=overwrite)
    num_terms = sum(" " in word for word in result.added_words)
    terms = {"terms": f"{num_terms:,} of them of several words, which become one piece"}
    display.facts(
        {
            "added": f"{format_count(len(result.added_words), 'word')}, "
            f"{result.num_reused:,} of them in unused entries",
            **(terms if num_terms else {}),
            "known": f"{format_count(len(result.known_words), 'word')} (already pieces)",
            "pieces": f"{result.model.tokenizer.vocab_size:,}",
            "written to": directory,
        }
    )


@verb("shrink", "bertworks shrink bert-base-multilingual-cased 'de/*.txt' --out bert-de")
def shrink(
    model: PlainModel,
    corpus: Corpus,
    *,
    out: Out,
    settings: SettingsOption,
    overwrite: Overwrite = False,
    display: TextDisplay,
) -> None:
    """Remove pieces that a corpus does not use.

    The texts of the corpus keep their tokens. Special pieces and single characters are kept, so
    that no other text becomes unknown.
    """
    from ..convert.model_editing import shrink as keep_used

    texts = CorpusInput(corpus, **settings)
    with output(
        out,
        texts.paths,
        model=model,
        folders=True,
        kind="whole directory",
        overwrite=overwrite,
    ):
        large = model.load("cpu")
        with Progress() as progress:
            small = keep_used(large, texts.paragraphs(progress.counter("reading", "MB")))
        directory = small.save(out, overwrite=overwrite)
    display.facts(
        {
            "pieces": f"{small.tokenizer.vocab_size:,} of {large.tokenizer.vocab_size:,}",
            "parameters": f"{small.num_parameters:,} of {large.num_parameters:,}",
            "documents": f"{texts.counts.documents:,}",
        }
    )
    show_read_counts(display, texts.counts)
    display.facts({"written to": directory})


@verb("extend", "bertworks extend bert-base-uncased --positions 1024 --out bert-base-1024")
def extend(
    model: PlainModel,
    *,
    positions: Annotated[int, typer.Option(min=1, max=literals.MAX_POSITIONS)],
    out: Out,
    overwrite: Overwrite = False,
    display: TextDisplay,
) -> None:
    """Extend a model to more positions.

    New positions start as copies of the old ones. Shorter texts keep their vectors; longer texts
    need some more pre-training. A smaller limit of the model's own (max_seq_length) stays.

    Args:
        positions (N): New maximum number of tokens per sequence.
    """
    from ..convert.model_editing import extend_positions, text_limit

    with output(out, model=model, kind="whole directory", overwrite=overwrite):
        short = model.load("cpu")
        long = extend_positions(short, positions)
        directory = long.save(out, overwrite=overwrite)
    facts = {"positions": f"{positions:,}, before {short.encoder.config.max_seqlen:,}"}
    if (limit := text_limit(long)) < positions:
        facts["limit"] = f"{limit:,} tokens of a text, as before: the model's max_seq_length"
    display.facts({**facts, "written to": directory})
