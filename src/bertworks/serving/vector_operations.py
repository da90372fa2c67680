"""Vectors of requests' texts, and their similarity: `embed` and `similarity`, as of `Model`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import NeedsPyTorchError, WrongModelError, has_pytorch
from ..inference.similarity import max_similarities, of_unit_length, similarities
from ..inference.text_embedding import TextEmbedder
from ..inference.vector_codes import fills_bytes
from ..settings.literals import Quantization
from ..settings.pooling import NO_POOLING, SPARSE_POOLINGS
from ..text.definition import Side
from .job import Job
from .loaded_model import VectorForm
from .request_error import invalid_field_error
from .runners import EmbedRunner, Text, TokenStatesRunner


async def embed(
    job: Job,
    items: Sequence[Text],
    *,
    form: VectorForm = "vectors",
    normalize: bool | None = None,
    truncate: bool | None = None,
    side: Side | None = None,
    dimensions: int | None = None,
    quantization: Quantization = "none",
    prompt_name: str | None = None,
    is_query: bool = False,
    **settings: Any,
) -> list[Any]:
    """Compute the vectors of texts; shorten and then normalize them if requested.

    Args:
        items: texts, token ids, or lists of words.
        form: a vector, a sparse one (a CSR matrix of one row), or the matrix of late
            interaction for each text; or a vector for each token.
        normalize: scale vectors to length 1; as in the model's files if omitted; ignored for
            vectors of tokens.
        truncate: truncate texts that are too long; otherwise they are an error.
        side: the side at which texts are truncated; the tokenizer's if omitted.
        dimensions: the length to which vectors are shortened; only for vectors of texts.
        quantization: how vectors are encoded for the response.
        prompt_name: name of the prompt to put before texts; if omitted, the one that `Model`
            puts there.
        is_query: whether texts are queries; see `EmbedSettings`.
        settings: others of `LoadedModel.get_embed_runner`.

    Raises:
        RequestError: vectors may not be shortened so, or the model has no such prompt.
        WrongModelError: the model makes vectors of another form.
    """
    loaded_model = job.loaded_model
    if is_query or loaded_model.is_for_queries(prompt_name):
        settings["is_query"] = True
    kind = TokenStatesRunner if form == "tokens" else EmbedRunner
    normalize = loaded_model.normalizes if normalize is None else normalize
    get_runner = partial(loaded_model.get_embed_runner, kind, **settings)
    try:
        embedder = get_runner().embedder
    except NeedsPyTorchError:
        if not has_pytorch():
            raise
        await job.service.load(loaded_model, lambda: loaded_model.network_model)
        embedder = get_runner().embedder
    _check_form(job, form, embedder)
    _check_dimensions(job, embedder.width, dimensions)
    width = dimensions or embedder.width
    if not fills_bytes(width, quantization):
        what = f"bits need a multiple of 8 numbers, not {width}: choose dimensions, or int8"
        raise invalid_field_error("encoding_format", what)
    is_shortened = dimensions not in (None, embedder.width)
    runner = get_runner(normalize=normalize and not is_shortened)
    if prompt_name is not None:
        prompt = get_prompt(job, prompt_name)
    elif job.limits.default_prompt or is_query:
        prompt = embedder.settings.prompt
    else:
        prompt = ""
    texts = [prompt + item.text for item in items if isinstance(item.text, str)]
    vectors = await job.compute(
        runner,
        items,
        texts or None,
        limit=embedder.limit,
        prepare=partial(
            runner.prepare,
            counts=job.context.request_tokens,
            truncate=bool(truncate),
            side=side,
            prompt=prompt,
        ),
    )
    if is_shortened:
        matrix = np.ascontiguousarray(np.stack(vectors)[:, :dimensions])
        vectors = list(of_unit_length(matrix) if normalize else matrix)
    return vectors


def get_prompt(job: Job, name: str) -> str:
    """Return a prompt to put before texts; refuse a name that the model does not have."""
    prompts = job.loaded_model.prompts.texts
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise invalid_field_error("prompt_name", f"the model has no such prompt; it has: {known}")
    return prompts[name]


def _check_form(job: Job, form: str, embedder: TextEmbedder) -> None:
    """Refuse vectors of a form that the model does not make."""
    name = job.loaded_model.name
    is_sparse = embedder.pooling in SPARSE_POOLINGS
    if form == "vectors" and is_sparse:
        raise WrongModelError(f"the model {name!r} makes sparse vectors", fix="Use /embed_sparse.")
    if form == "vectors" and embedder.pooling == NO_POOLING:
        raise WrongModelError(
            f"the model {name!r} makes a matrix for each text", fix="Use /rerank."
        )
    if form == "sparse" and not is_sparse:
        raise WrongModelError(
            f"the model {name!r} makes no sparse vectors (it has no SPLADE pooling)",
            fix="Use /embed.",
        )


def _check_dimensions(job: Job, width: int, dimensions: int | None) -> None:
    """Refuse a length to which vectors may not be shortened."""
    if dimensions is None:
        return
    if not 1 <= dimensions <= width:
        raise invalid_field_error("dimensions", f"must be from 1 to {width}")
    prompts = job.loaded_model.prompts
    is_any = job.limits.any_dimensions or prompts.any_dimensions
    if dimensions != width and not is_any and dimensions not in prompts.dimensions:
        which = ", ".join(map(str, sorted(prompts.dimensions)))
        raise invalid_field_error(
            "dimensions",
            f"the model's vectors may be shortened to {which}"
            if which
            else "the model was not trained for shorter vectors (Matryoshka); "
            "the server's --any-dimensions allows them",
        )


async def similarity(
    job: Job, text: Text, others: Sequence[Text], **options: Any
) -> NDArray[np.float32]:
    """Compute the similarity of a text with each of the others: float32 `[1, others]`.

    Args:
        options: of `embed`. With `prompt_name`, all texts have this prompt; otherwise the first
            is a query, as in `Model.similarity`.
    """
    model, form = job.model, job.loaded_model.form
    if model.compares_queries and options.get("prompt_name") is None:
        queries = await embed(job, [text], form=form, is_query=True, **options)
        vectors = queries + await embed(job, others, form=form, **options)
    else:
        vectors = await embed(job, [text, *others], form=form, **options)
    if form == "matrices":
        return max_similarities(vectors[:1], vectors[1:])
    matrix = job.loaded_model.get_embed_runner().embedder.concatenate(
        [vector.reshape(1, -1) for vector in vectors]
    )
    return similarities(matrix[:1], matrix[1:], model.similarity_function)
