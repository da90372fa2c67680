"""Write vectors of texts, tokens or words: `embed`, `features`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..utils.formatting import format_count, format_duration
from ..utils.progress import Progress
from ..utils.remote import is_remote
from .application import verb
from .devices import EngineOption, ModelWorkers
from .display import TextDisplay, stopwatch
from .models import TaskModel
from .option_groups import OptionGroup
from .options import Overwrite, Part, SettingsOption
from .outputs import output
from .texts import Source, lines_of

if TYPE_CHECKING:
    from ..inference.vectors import WrittenVectors


def _vector_writer(
    model: TaskModel,
    source: Source,
    *,
    overwrite: Overwrite = False,
    part: Part = None,
    workers: ModelWorkers,
    settings: SettingsOption,
    engine: EngineOption,
    display: TextDisplay,
) -> Callable[[str, str], None]:
    """A function that writes vectors to a file, with the method of `Model` that is named."""
    texts, data, column = source
    inputs: str | Iterable[str] = texts if data is None else data
    if "-" in texts:
        inputs = lines_of(texts, settings)
    options = {"column": column, "part": part, "overwrite": overwrite} | workers | settings

    def write(out: str, method: str) -> None:
        def compute(loaded_model: Any) -> tuple[WrittenVectors, float]:
            to_file = getattr(loaded_model, method)
            with stopwatch() as seconds, Progress() as progress:
                embedding = progress.counter("embedding", "texts")
                return to_file(out, inputs, progress=embedding, **options), seconds()

        with output(None if is_remote(out) else out, [data], model=model):
            result, seconds = model.use(compute, engine)
            rows = f"{result.rows:,}"
            if result.new < result.rows:
                rows += f", {result.rows - result.new:,} of them already there"
            facts = {"texts": rows, "width": f"{result.width:,}"}
            if result.num_truncated:
                facts["truncated"] = (
                    f"{format_count(result.num_truncated, 'text')} too long for the model"
                )
            display.facts(facts)
            rate = f"{result.new / seconds:,.0f} texts/s" if result.new else "nothing to do"
            display.facts({"time": f"{format_duration(seconds)}, {rate}", "written to": out})

    return write


VectorWriter = Annotated[Callable[[str, str], None], OptionGroup(_vector_writer)]


@verb(
    "embed",
    "bertworks embed sentence-transformers/all-MiniLM-L6-v2 --data texts.txt \\\n"
    "      --out vectors.npy",
    "bertworks embed bert-base-uncased --data news.csv --column title \\\n"
    "      --out news.parquet pooling=mean layers=-2 normalize=true",
    "cat texts.txt | bertworks embed mini-sentences - --out vectors.npy",
)
def embed(*, out: str, write: VectorWriter) -> None:
    """Write one vector per text to a file.

    Texts are streamed, so there is no limit on their number. If interrupted, the same command
    resumes. FILE.json records the model and settings. Row N belongs to text N, counted from 0.

    Args:
        out (FILE): Output file: .npy (NumPy) or .parquet; .npz or .parquet for sparse vectors;
            .safetensors or .parquet for late interaction.
    """
    write(out, "embed_to")


@verb(
    "features",
    "bertworks features runs/tiny --data texts.txt --out words.parquet unit=words",
)
def features(*, out: str, write: VectorWriter) -> None:
    """Write one vector per token or word, with its position.

    The columns are row (number of the text, from 0), token or word, start and end (characters),
    and vector. If interrupted, the same command resumes.

    Args:
        out (FILE): Output file: .parquet.
    """
    write(out, "features_to")
