"""Schemas of requests and responses, from which the OpenAPI description is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ..errors import did_you_mean
from ..settings.literals import Pooling, Precision

Words = list[str]
Ids = list[Annotated[int, Field(ge=0, le=2**31 - 1)]]
Side = Literal["Left", "Right", "left", "right"]
TopK = Annotated[int, Field(ge=1, le=1000)]
Prompt = Field(None, description="The name of a prompt of the model, put before each text.")
Truncate = Field(None, description="Truncate texts that are too long; else they are an error.")


class Request(BaseModel):
    """A request; a field that is null has its default, as if it was omitted."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_omitted(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {k: value for k, value in values.items() if value is not None or k not in optional}


class LenientRequest(Request):
    """A request in another server's format; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class StrictRequest(Request):
    """A request in a format of this server only: an unknown field is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, description="A served model's name; the first if omitted.")

    @model_validator(mode="before")
    @classmethod
    def _fields_are_known(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                fix = did_you_mean(name, cls.model_fields)
                raise PydanticCustomError(
                    "unknown_field", "no such field. {fix}", {"fix": fix, "field": name}
                )
        return values


# --- OpenAI ---


class EmbeddingsRequest(LenientRequest):
    """A request for embeddings in OpenAI's format."""

    model: str | None = Field(None, description="A served model's name; the first if omitted.")
    input: str | list[str] | Ids | list[Ids] = Field(description="A text, or several.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    truncate: bool | None = Truncate
    prompt_name: str | None = Prompt


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelEntry]


class Document(BaseModel):
    text: str


class V1RerankRequest(LenientRequest):
    """A request for reranking in the format of Cohere and Jina."""

    model: str | None = None
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    raw_scores: bool = False
    truncate: bool | None = Truncate


class RankedDocument(BaseModel):
    index: int
    relevance_score: float
    document: Document | None = None


class V1RerankAnswer(BaseModel):
    object: Literal["rerank"]
    id: str
    model: str
    results: list[RankedDocument]
    usage: Usage


class V2RerankRequest(LenientRequest):
    """A request for reranking in the format of Cohere's second version."""

    model: str | None = None
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Truncate documents that are longer; else they are an error."
    )
    truncate: bool | None = Truncate


class V2RankedDocument(BaseModel):
    index: int
    relevance_score: float


class V2RerankAnswer(BaseModel):
    id: str
    results: list[V2RankedDocument]
    meta: dict[str, Any]


class CohereError(BaseModel):
    message: str


class OpenAIErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIErrorBody


# --- text-embeddings-inference ---


class TEIError(BaseModel):
    error: str
    error_type: str


class TEIParameters(LenientRequest):
    """Options for texts."""

    truncate: bool | None = Truncate
    truncation_direction: Side = "Right"
    prompt_name: str | None = Prompt


class TEIRequest(TEIParameters):
    """Fields that requests have in common."""

    model: str | None = None


class PairsRequest(TEIRequest):
    """Fields that requests for labels and ranks have in common."""

    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    prompt_name: str | None = Field(None, description="Refused: prompts are for vectors.")


class EmbedAllRequest(TEIRequest):
    """A vector for each token."""

    inputs: str | list[str] | Ids | list[Ids] = Field(description="A text, or several.")


class EmbedRequest(EmbedAllRequest):
    """Vectors of texts."""

    normalize: bool = True
    dimensions: int | None = None


class PredictRequest(PairsRequest):
    """Labels of texts or pairs of texts; `["a", "b"]` is one pair."""

    inputs: str | list[str] | list[list[str]] = Field(
        description="A text, a pair of texts, or a list of lists of one or two texts."
    )


class LabelScore(BaseModel):
    label: str
    score: float


class RerankRequest(PairsRequest):
    """How well texts (or, in infinity's format, documents) answer a query."""

    query: str
    texts: list[str] | None = None
    return_text: bool = False
    documents: list[str] | None = Field(
        None, description="The texts in infinity's format, which the response then has."
    )
    return_documents: bool = Field(False, description="The same as return_text.")
    top_n: Annotated[int, Field(ge=1)] | None = None


class Rank(BaseModel):
    index: int
    score: float
    text: str | None = None


class InfinityRank(BaseModel):
    index: int
    relevance_score: float
    document: str | None


class InfinityRanks(BaseModel):
    object: Literal["rerank"]
    id: str
    created: int
    model: str
    results: list[InfinityRank]
    usage: Usage


class SimilarityInput(LenientRequest):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TEIParameters):
    """Options for the texts of a similarity request."""


class SimilarityRequest(LenientRequest):
    """Cosines between one text and others."""

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TokenizeRequest(LenientRequest):
    """Tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = Prompt
    model: str | None = None


class Token(BaseModel):
    """A token; `start` and `stop` are byte offsets in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeRequest(LenientRequest):
    """Texts of token ids."""

    ids: Ids | list[Ids]
    skip_special_tokens: bool = True
    model: str | None = None


# --- bert-as-service ---


class EncodeRequest(LenientRequest):
    """Vectors of texts, with a choice of layers and pooling."""

    id: int = 0
    texts: list[str] | list[Words]
    is_tokenized: bool = Field(False, description="Each text is a list of words.")
    pooling: Pooling | None = None
    layers: list[int] | None = Field(None, description="-1: the last; 0: the embeddings.")
    combine: Literal["concat", "sum", "mean"] = "concat"
    normalize: bool | None = Field(None, description="As in the model's files if omitted.")
    precision: Precision | None = None
    encoding_format: Literal["float", "base64"] = "float"
    truncate: bool | None = Truncate
    model: str | None = None


class EncodeAnswer(BaseModel):
    id: int
    results: list[list[float] | str]
    status: int


class ServerStatus(BaseModel):
    """The fields of bert-as-service's status that this server has."""

    status: int
    client: str
    model_dir: str
    ckpt_name: str
    max_seq_len: int
    pooling_layer: list[int]
    pooling_strategy: int | None
    cpu: bool
    fp16: bool
    do_lower_case: bool
    mask_cls_sep: bool
    show_tokens_to_client: bool
    num_worker: int
    num_process: int
    num_concurrent_socket: int
    http_max_connect: int
    max_batch_size: int
    http_port: int
    port: int
    port_out: int
    python_version: str
    server_version: str
    server_start_time: str
    server_current_time: str
    statistic: dict[str, int]


class ClientStatus(BaseModel):
    """The fields of the status of bert-as-service's client that this server has."""

    status: int
    client_version: str
    server_ip: str
    port: int
    port_out: int
    output_fmt: str
    num_request: int
    num_pending_request: int
    pending_request: list[int]
    timeout: int


# --- BERT's tasks ---


class FillMaskRequest(StrictRequest):
    """The most likely pieces for each mask of texts, and the probabilities of any candidates."""

    inputs: str | list[str]
    top_k: TopK = 5
    candidates: list[str] | None = Field(
        None, description="Words to score; a word of n pieces takes n masks."
    )


class Piece(BaseModel):
    token: str
    id: int
    probability: float


class CandidateChance(BaseModel):
    candidate: str
    probability: float


class FilledMasks(BaseModel):
    masks: list[list[Piece]]
    candidates: list[list[CandidateChance]] | None = None


class ClassifyRequest(StrictRequest):
    """The label and probabilities, or the regression value, of each text or pair of texts."""

    inputs: str | list[str] | list[list[str]] = Field(
        description="A text, texts, or pairs of texts."
    )
    truncate: bool | None = Truncate
    windows: bool = Field(False, description="Read long texts in windows, and pool their logits.")


class TagRequest(StrictRequest):
    """The tags of the words of texts, and the entities that they mark."""

    inputs: str | list[str]


class Question(StrictRequest):
    model: None = Field(None, exclude=True)
    question: str
    context: str


class AnswerRequest(StrictRequest):
    """The spans of passages that answer questions."""

    inputs: Question | list[Question]
    n_best: Annotated[int, Field(ge=1, le=100)] = 5
    null_threshold: float | None = Field(
        None,
        description="No answer is predicted if it scores better by more than this.",
    )


class NextSentenceRequest(StrictRequest):
    """The probability that the second text of each pair follows the first."""

    inputs: list[str] | list[list[str]] = Field(description="A pair of texts, or pairs.")


class NextSentence(BaseModel):
    next_sentence_probability: float


class GenerateRequest(StrictRequest):
    """Continuations of prompts by a causal model."""

    inputs: str | list[str]
    max_new_tokens: Annotated[int, Field(ge=1)] = 40
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_k: TopK | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop_ids: Ids = Field([], max_length=64)
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    copies: dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(
        {},
        description="How often a prompt was in earlier requests for the same seed; "
        "each copy has different random draws.",
    )


class Generated(BaseModel):
    generated: str


class RowsRequest(StrictRequest):
    """Predictions for rows of any task, including tasks that users define."""

    rows: list[str | list[str] | dict[str, Any]] = Field(
        description="A row's columns are those of the task; or a text, or a pair of texts."
    )
