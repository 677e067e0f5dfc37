"""Sources on a dataset hub, read by the `datasets` library at a pinned revision.

Columns, label names with their order, and row counts are asserted on load, so that a
changed source is refused rather than trained on. Loading scripts are never run.
"""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from rlcd_core.data.convert import check_rows, make_item
from rlcd_core.data.items import Item
from rlcd_core.data.manifest import Manifest, SourceError, Unreachable
from rlcd_core.data.split import stable_order


def load_hub(manifest: Manifest, split: str) -> Any:
    """Load one split as a `datasets.Dataset` and check it against its manifest.

    Parameters
    ----------
    manifest
        Of a hub source. `package` may also be a local folder of Parquet, JSONL or CSV
        files of the same schema.
    split
        Split of the source, a key of ``manifest.rows``.

    Raises
    ------
    SourceError
        `datasets` is missing; the hub cannot be reached; the repository is a loading
        script; columns, label names or row count differ. The message tells the mend.
    """
    try:
        import datasets
    except ImportError as error:
        raise SourceError(
            f"{manifest.name} is a hub source: install `datasets` (extra `train`)."
        ) from error
    try:
        table = datasets.load_dataset(
            manifest.package,
            manifest.config or None,
            split=split,
            revision=manifest.version or None,
        )
    except Exception as error:
        absent = isinstance(error, ConnectionError)
        if "dataset scripts" in str(error).casefold():
            mend = "It is a loading script: pin a revision that holds Parquet files."
        else:
            mend = (
                "If this machine is offline, connect it, or fill the Hugging Face "
                "cache elsewhere and set HF_HOME to it; packaged sources need no hub."
            )
        raise (Unreachable if absent else SourceError)(
            f"{manifest.name}: could not load {manifest.package} {manifest.config} at "
            f"{manifest.version}. {mend} ({type(error).__name__}: {error})"
        ) from error
    missing = [name for name in manifest.columns if name not in table.column_names]
    if missing:
        raise SourceError(
            f"{manifest.name}: columns {missing} are missing; found "
            f"{table.column_names}. Review the manifest."
        )
    names = getattr(table.features[manifest.read["label"]], "names", None)
    if names is not None and tuple(names) != manifest.labels:
        raise SourceError(
            f"{manifest.name}: the label names or their order differ.\n  expected "
            f"{list(manifest.labels)}\n  found    {names}\nReview the manifest."
        )
    check_rows(manifest, split, len(table))
    return table


def read_hub(
    manifest: Manifest, limits: dict[str, int]
) -> tuple[dict[str, list[Item]], int]:
    """Load and convert a hub source.

    Parameters
    ----------
    manifest
        Of a hub source.
    limits
        Most rows to keep of a source split, drawn in `stable_order`; a split that is
        not named is not loaded.

    Returns
    -------
    items, refused
        Items by source split, and the number of rows that are no valid question
        (empty state, duplicate or missing options, no label).
    """
    found: dict[str, list[Item]] = {}
    refused, roles = 0, manifest.read
    for split, limit in limits.items():
        table = load_hub(manifest, split)
        keys = stable_order((f"{split}-{k}" for k in range(len(table))), 0)[:limit]
        table = table.select([int(key.rpartition("-")[2]) for key in keys])
        found[split] = []
        rows = tqdm(zip(keys, table, strict=True), manifest.name, len(keys), unit="row")
        for key, row in rows:
            try:
                raw = _raw_label(manifest, row)
                state = row[roles["state"]]
                found[split].append(make_item(manifest, key, state, raw, row))
            except ValueError:  # SchemaError is one
                refused += 1
    return found, refused


def _raw_label(manifest: Manifest, row: dict[str, Any]) -> str:
    """The manifest's label of a row; moves its own options to ``row["options"]``."""
    value = row[manifest.read["label"]]
    if "options" in manifest.read:
        own = row[manifest.read["options"]]
        row["options"] = own["text"] if isinstance(own, dict) else own
        if isinstance(own, dict):
            return str(own["label"].index(value))
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    if not 0 <= value < len(manifest.labels):
        raise ValueError(f"row without a label ({value})")
    told = row.get(manifest.read.get("label_name", ""), manifest.labels[value])
    if told != manifest.labels[value]:
        raise SourceError(
            f"{manifest.name}: id {value} is called {told!r}, the manifest says "
            f"{manifest.labels[value]!r}. Review the manifest."
        )
    return manifest.labels[value]
