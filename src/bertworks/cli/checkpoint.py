"""Checkpoints: `inspect`, `convert`, and changes to them: `add-tokens`, `shrink`, `extend`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import show
from .app import (
    AsJson,
    Encoding,
    MaxLineBytes,
    ModelPath,
    TaskFile,
    line_options,
    output,
    read_lines,
    verb,
)
from .corpus import Column, Corpus, Format, SkipBad

if TYPE_CHECKING:
    from ..api import Model

Out = Annotated[str, typer.Option(metavar="DIR", help="The directory to write.")]


@verb("inspect", "bertworks inspect runs/tickets", "bertworks inspect bert-base-uncased --json")
def inspect(
    model: ModelPath,
    tensors: Annotated[bool, typer.Option("--tensors", help="Name every tensor used.")] = False,
    json: AsJson = False,
) -> None:
    """Tell what is in a checkpoint, and what became of each tensor."""
    from ..inspection import inspect as look

    found = look(model)
    if json:
        show.as_json(asdict(found))
        return
    geometry = found.geometry
    vocabulary = found.vocabulary
    special = " ".join(
        str(vocabulary[role]) for role in ("pad", "unk", "cls", "sep", "mask") if role in vocabulary
    )
    show.facts(
        {
            "family": found.family,
            "task": found.task or "none: a bare encoder",
            "heads": ", ".join(found.heads) or "none",
            "geometry": f"{geometry['num_hidden_layers']} layers, "
            f"{geometry['hidden_size']} wide, {geometry['num_attention_heads']} heads, "
            f"feed-forward {geometry['intermediate_size']}, {geometry['hidden_act']}",
            "positions": geometry["max_position_embeddings"] - geometry["position_offset"],
            "vocabulary": f"{vocabulary['size']:,} pieces, {vocabulary['kind']}, "
            f"{vocabulary['casing']}, {vocabulary['unused']:,} unused",
            "special": special,
            "dtype": ", ".join(f"{count} × {name}" for name, count in found.dtypes.items()),
            "license": found.license or "not named",
        }
    )
    typer.echo()
    show.table(
        ("parameters", "count"),
        [(part, f"{count:,}") for part, count in found.parameters.items()],
        right="count",
    )
    typer.echo(f"{len(found.used)} tensors used, {len(found.dropped)} dropped")
    if tensors:
        for name in found.used:
            typer.echo(f"  used     {name}")
    for name, reason in found.dropped.items():
        typer.echo(f"  dropped  {name}: {reason}")
    for name, count in found.non_finite.items():
        typer.echo(f"  not finite  {name}: {count:,} × NaN or infinity")


@verb("convert", "bertworks convert uncased_L-12_H-768_A-12 bert-base --to hf")
def convert(
    source: ModelPath,
    target: Annotated[str, typer.Argument(metavar="DST", help="The directory to write.")],
    to: Annotated[
        Literal["hf", "safetensors", "onnx", "tensorflow"],
        typer.Option(help="hf and safetensors are one layout; tensorflow is the first release's."),
    ] = "hf",
    task: TaskFile = None,
) -> None:
    """Write a checkpoint in another layout, with every weight kept to the bit."""
    from ..api import load

    with output(target, model=source, kind="whole directory"):
        model = load(source, task=task, device="cpu")
        if to == "tensorflow":
            from ..checkpoints.export import write_tensorflow

            written = write_tensorflow(
                target,
                network=model.network,
                config=model.encoder.config,
                tokenizer=model.tokenizer,
            )
        elif to == "onnx":
            from ..onnx import write_onnx

            written = write_onnx(model, target)
        else:
            written = model.save(target)
    show.facts({"written to": written})


@verb(
    "add-tokens",
    "bertworks add-tokens bert-base-uncased words.txt --out bert-base-domain",
)
def add_tokens(
    model: ModelPath,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Words, one a line.")],
    out: Out,
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
) -> None:
    """Make pieces of words, each beginning as the mean of its former pieces."""
    from ..api import load
    from ..surgery import add_tokens as add

    with output(out, [file], model=model, kind="whole directory"):
        words = list(read_lines(Path(file), **line_options(encoding, max_line_bytes)))
        found = add(load(model, device="cpu"), words)
        written = found.model.save(out)
    show.facts(
        {
            "added": f"{len(found.added):,} words, {found.reused:,} of them in unused places",
            "known": f"{len(found.known):,} words were pieces already",
            "pieces": f"{found.model.tokenizer.vocab_size:,}",
            "written to": written,
        }
    )


@verb("shrink", "bertworks shrink bert-base-multilingual-cased 'de/*.txt' --out bert-de")
def shrink(
    model: ModelPath,
    corpus: Corpus,
    out: Out,
    format: Format = "auto",
    column: Column = None,
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    skip_bad: SkipBad = False,
) -> None:
    """Leave out the pieces that a corpus does not use; its texts keep their tokens.

    Special pieces and single characters stay, so that no text becomes unknown that was not.
    """
    from ..api import load
    from ..checkpoints.replacing import check_target
    from ..corpus.readers import ReadCounts, read_documents
    from ..corpus.sources import parse_sources, paths_of
    from ..surgery import shrink as keep_used

    sources = parse_sources(corpus, format=format, column=column)
    counts = ReadCounts()
    documents = read_documents(
        sources, skip_bad=skip_bad, counts=counts, **line_options(encoding, max_line_bytes)
    )

    def paragraphs() -> Iterator[str]:
        for document in documents:
            yield from document.paragraphs
            reading(counts.bytes_read, counts.bytes_total)

    with output(out, paths_of(sources), model=model, kind="whole directory"):
        check_target(out)  # reading a corpus may take long
        large = load(model, device="cpu")
        with show.bar("reading") as reading:
            small = keep_used(large, paragraphs())
        written = small.save(out)
    before, after = (_parameters(one) for one in (large, small))
    show.facts(
        {
            "pieces": f"{small.tokenizer.vocab_size:,} of {large.tokenizer.vocab_size:,}",
            "parameters": f"{after:,} of {before:,}",
            "documents": f"{counts.documents:,}",
        }
    )
    show.read_counts(counts)
    show.facts({"written to": written})


@verb("extend", "bertworks extend bert-base-uncased --positions 1024 --out bert-base-1024")
def extend(
    model: ModelPath,
    positions: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most tokens a sequence may then have.")
    ],
    out: Out,
) -> None:
    """Give a model more positions, which begin as copies of the old.

    Shorter texts keep their vectors; longer ones want some more pre-training.
    """
    from ..api import load
    from ..surgery import extend_positions

    with output(out, model=model, kind="whole directory"):
        short = load(model, device="cpu")
        written = extend_positions(short, positions).save(out)
    show.facts(
        {
            "positions": f"{positions:,}, before {short.encoder.config.max_seqlen:,}",
            "written to": written,
        }
    )


def _parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())
