"""Publish a model on the Hugging Face hub: `push`."""

from __future__ import annotations

from ..utils.formatting import format_count
from .application import verb
from .display import TextDisplay
from .models import ModelName


@verb(
    "push",
    "bertworks push runs/tickets me/tickets",
    "bertworks push runs/tickets me/tickets --send",
)
def push(
    model: ModelName,
    name: str,
    *,
    send: bool = False,
    public: bool = False,
    display: TextDisplay,
) -> None:
    """List what of a model would be published on the hub; with --send, publish it.

    Without --send, nothing is sent and the hub is not asked. Only the files of the model are sent:
    no checkpoints, journals, predictions or other files of its directory. The token is that of
    huggingface-hub (hf auth login, or HF_TOKEN).

    Args:
        name (OWNER/NAME): Name on the hub.
        send: Create the model there if it does not exist, and send the files in one commit.
        public: Create it for everyone; by default it is private.
    """
    from ..checkpoints.publishing import Publication

    publication = Publication.plan(model, name)
    display.table(
        ("file", "bytes"),
        [(path, f"{size:,}") for path, size in publication.files.items()],
        right="bytes",
    )
    total = sum(publication.files.values())
    num_files = format_count(len(publication.files), "file")
    facts: dict[str, object] = {"size": f"{total / 1e6:,.1f} MB, {num_files}"}
    if publication.left_out:
        facts["left out"] = ", ".join(publication.left_out)
    facts["license"] = publication.license or "not named: add it to the model's README.md"
    kind = "public" if public else "private"
    if send:
        facts["published"] = publication.send(public=public)
    else:
        facts["would create"] = f"{name} ({kind}) on the hub, unless it exists"
        facts["to do it"] = "the same command with --send; nothing was sent"
    display.facts(facts)
