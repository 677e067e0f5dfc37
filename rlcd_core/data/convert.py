"""Converters: what a source holds -> items.

Names of labels, options and question come from the manifest; a row that has another
label than the manifest knows is an error, and no row is dropped here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlcd_core.data import triage
from rlcd_core.data.items import Item
from rlcd_core.data.manifest import Manifest, SourceError, fetch
from rlcd_core.data.rater import load_rater
from rlcd_core.data.split import normalise
from rlcd_core.schema import make_question

# Longest state kept of a long text, in characters (the protocol's cut).
MAX_CHARS = 1500


Row = tuple[str, str, str]  # id, state, raw label


def _trec(folder: Path, coarse: bool) -> Iterator[Row]:
    text = (folder / "question_labels.txt").read_text("utf-8")
    for k, line in enumerate(filter(None, text.split("\n"))):
        label, question = line.split(" ", 1)
        yield str(k), question, label.split(":")[0] if coarse else label


def _sms(folder: Path) -> Iterator[Row]:
    # The quoting is broken: a csv parser swallows hundreds of lines.
    text = (folder / "sms-spam.csv").read_text("utf-8")
    numbered, named = re.compile(r"\d+,([01]),(.*)"), re.compile(r"(ham|spam)\t(.*)")
    for k, line in enumerate(text.split("\n")[1:]):
        if match := numbered.fullmatch(line) or named.fullmatch(line):
            said = match[2]
            if len(said) > 1 and said[0] == said[-1] == '"':
                said = said[1:-1]
            yield str(k), said.replace('""', '"'), match[1]


def _uci(folder: Path) -> Iterator[Row]:
    for name in ("amazon", "imdb", "yelp"):
        rows = json.loads((folder / f"{name}.json").read_text("utf-8"))
        if rows.pop() != {"text": "", "class": None}:
            raise SourceError(f"uci_sentences: {name}.json has no empty row at its end")
        for k, row in enumerate(rows):
            yield f"{name}-{k}", row["text"], str(row["class"])


def _mails(folder: Path) -> Iterator[Row]:
    for path in sorted((folder / "mails").glob("*/*.txt")):
        raw = path.read_text("utf-8", errors="replace")
        # Headers but the subject tell the collector's history, not the sender's intent.
        body = raw.replace("\r\n", "\n").partition("\n\n")[2]
        subject = re.search(r"^Subject:[ \t]*(.*)$", raw, re.MULTILINE)
        text = f"Subject: {subject[1] if subject else ''}\n\n{body}"
        yield f"{path.parent.name}/{path.stem}", text, path.parent.name


def _glosses(folder: Path) -> Iterator[Row]:
    for line in (folder / "data.noun").read_text("utf-8").split("\n"):
        if line and not line.startswith("  "):  # the licence stands indented on top
            offset, category = line.split(" ", 2)[:2]
            definition = line.split(" | ", 1)[1].split('; "')[0]
            yield offset, definition, category


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    "trec": partial(_trec, coarse=True),
    "trec_fine": partial(_trec, coarse=False),
    "sms_spam": _sms,
    "uci_sentences": _uci,
    "spam_assassin": _mails,
    "wordnet": _glosses,
}


def make_item(
    manifest: Manifest, key: str, state: str, raw: str, row: Mapping[str, Any]
) -> Item:
    """Build the item of one source row.

    Parameters
    ----------
    manifest
        Says the question and what the labels are called.
    key
        Id of the row within its source.
    state
        Cut to `MAX_CHARS` characters.
    raw
        One of the manifest's labels, or of ``row["options"]`` by position.
    row
        Columns that the question's text may quote, and "options" where each row has
        its own.

    Raises
    ------
    SourceError
        A label that the manifest does not know.
    ValueError
        The state is empty, or the row's options are no valid question.
    """
    if "options" in row:
        options = names = tuple(row["options"])
        labels = tuple(str(k) for k in range(len(names)))
    else:
        names, labels = manifest.options, manifest.labels
        options = tuple(dict.fromkeys(names))
    if raw not in labels:
        raise SourceError(f"{manifest.name}: unknown label {raw!r} in row {key}.")
    text = manifest.question["text"].format_map(row).strip()
    question = make_question(
        {"kind": manifest.question["kind"], "text": text, "options": options}
    )
    state = state.strip()[:MAX_CHARS].strip()
    label = options.index(names[labels.index(raw)])
    return Item(key, manifest.name, normalise(state), state, question, label)


def read_packaged(manifest: Manifest) -> dict[str, list[Item]]:
    """Fetch and convert a packaged or generated source; all rows are split "all".

    Raises
    ------
    SourceError
        A label that the manifest does not know, or another number of rows.
    """
    if manifest.kind == "rater":
        data = load_rater(manifest.name)
        items = [
            Item(key, data.name, group, text, data.question, counts=tuple(counts))
            for key, group, text, counts in zip(
                data.ids, data.groups, data.texts, data.counts.tolist(), strict=True
            )
        ]
    elif manifest.registry == "generated":
        items = triage.tickets(manifest.rows["all"], np.random.default_rng(0))
    else:
        folder = fetch(manifest.name)
        items = [
            make_item(manifest, key, state, raw, {})
            for key, state, raw in READERS[manifest.name](folder)
        ]
    check_rows(manifest, "all", len(items))
    return {"all": items}


def check_rows(manifest: Manifest, split: str, found: int) -> None:
    """Raise `SourceError` unless a split has the manifest's number of rows."""
    if found != manifest.rows[split]:
        raise SourceError(
            f"{manifest.name}: split {split!r} has {found} rows, the manifest says "
            f"{manifest.rows[split]}. The source has changed: review the manifest."
        )
