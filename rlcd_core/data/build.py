"""Built splits: deduplicated, grouped, leak-free, hashed, and locked.

``lock.yaml`` beside the manifests holds the SHA-256 of each built split. A build with
other bytes is refused; a deliberate change is recorded with ``update_lock=True``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml
from filelock import FileLock

from rlcd_core.data import hub
from rlcd_core.data.convert import read_packaged
from rlcd_core.data.items import Item, from_jsonl, to_jsonl
from rlcd_core.data.manifest import (
    HashMismatch,
    Manifest,
    SourceError,
    cache_dir,
    load_manifest,
    manifest_dir,
    manifest_names,
)
from rlcd_core.data.nota import present
from rlcd_core.data.split import (
    link_groups,
    near_duplicates,
    split_by_group,
    stable_order,
)
from rlcd_core.files import write_atomically

SPLITS = ("train", "val", "test")
# Sources of the two mixtures. The protocol's are eight of 8,000 training rows each.
MIXTURES = {
    "protocol": (
        "ag_news banking77 bitext boolq mnli sst5 triage yelp".split(),
        8000,
    ),
    "packaged": ("amazon movie sms_spam trec triage".split(), 4000),
}

CARD = """# Data card

Written by `rlcd data card` from the manifests and the hashes of the built splits; not
edited by hand. What the columns mean and what could leak: \
{{doc}}`../notebooks/21_data`.

## Where each source comes from

| source | from | licence | use | rows: train / val / test | left out | near-duplicate \
pairs (kept in one split) |
|---|---|---|---|---|---|---|
{sources}

*Use*: all rows of an "ood" source are test rows, for policies trained elsewhere; a page
that learns from one splits it itself.

*Left out*: "repeated" rows hold the same text and question as another row,
"conflicting" ones do so with another label, "leak" rows of a later split nearly repeat
an earlier split, "invalid" ones make no question. The licence is the one that the
source states. The repository holds none of these texts: they are fetched and checked
by hash when the data are built, and chapters quote single examples. BIG-bench is not
among them: its package comes only as a source distribution of 358 MB, whose code pip
runs on download.

## What the built rows hold

Rated texts count each rater's verdict. Of more than ten options the two commonest and
the rarest are listed.

| source | kind | options: rows | characters of the state, percentiles \
5 / 25 / 50 / 75 / 95 | share of the labels |
|---|---|---|---|---|
{shapes}
"""


@dataclass(frozen=True)
class Built:
    """The splits of one source, and what was left out and why.

    Attributes
    ----------
    splits
        "train", "val", "test" -> items in a fixed random order; a split may be empty.
    dropped
        Reason -> rows: "repeated" (same state and question), "conflicting" (the same
        with different labels, all left out), "leak" (a val or test row close to a
        row of an earlier split), "invalid" (no valid question).
    near_duplicates
        Pairs of kept texts that nearly repeat each other; each pair shares a split.
    """

    name: str
    splits: Mapping[str, list[Item]]
    dropped: Mapping[str, int]
    near_duplicates: int

    def summary(self) -> dict[str, Any]:
        """What the lock records: rows and SHA-256 of splits, and the data card's facts.

        ``options`` maps a number of options to rows, ``characters`` a percentile of
        the length of the state to characters, ``shares`` an option to its share of
        the labels (of the raters' verdicts, where there are several).
        """
        items = [item for split in SPLITS for item in self.splits[split]]
        lengths = [len(str(item.state)) for item in items]
        shares: dict[str, float] = {}
        for item in items:
            masses = item.counts or np.eye(len(item.question.options))[item.label]
            for option, mass in zip(item.question.options, masses, strict=True):
                part = float(mass / sum(masses) / len(items))
                shares[option] = shares.get(option, 0.0) + part
        ranked = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))
        # Of many options, the two commonest and the rarest.
        told = ranked if len(ranked) <= 10 else [*ranked[:2], ranked[-1]]
        return {
            "splits": {
                split: {
                    "rows": len(self.splits[split]),
                    "sha256": hashlib.sha256(to_jsonl(self.splits[split])).hexdigest(),
                }
                for split in SPLITS
            },
            "dropped": dict(self.dropped),
            "near_duplicates": self.near_duplicates,
            "kinds": sorted({item.question.kind for item in items}),
            "options": dict(Counter(len(i.question.options) for i in items)),
            "characters": {
                q: int(np.percentile(lengths, q)) for q in (5, 25, 50, 75, 95)
            },
            "shares": {option: round(share, 4) for option, share in told},
        }


def data_names() -> list[str]:
    """Names of all sources of data (models left out), sorted."""
    return [name for name in manifest_names() if load_manifest(name).kind != "model"]


def _without_repeats(items: Sequence[Item], dropped: Counter[str]) -> list[int]:
    """Rows to keep: the first of equal ones, none where equal ones disagree."""
    first: dict[tuple[object, ...], int] = {}
    conflicting: set[int] = set()
    for row, item in enumerate(items):
        # A rated text keeps its raters, even if it comes twice.
        own = item.id if item.counts else ""
        key = (own, str(item.state), item.question.text, item.question.options)
        earlier = first.setdefault(key, row)
        if earlier != row:
            same = items[earlier].label == item.label
            dropped["repeated" if same else "conflicting"] += 1
            conflicting |= set() if same else {earlier}
    dropped["conflicting"] += len(conflicting)
    return [row for row in first.values() if row not in conflicting]


def build(manifest: Manifest, per_source: int = 8000) -> Built:
    """Build the splits of one source.

    Whole groups, merged where texts nearly repeat each other, go to one split, so
    nothing straddles. Splits that the source has are kept (rows of them that come
    close to an earlier split are dropped); the others are carved out of its train
    rows, a tenth each. Tickets of the generator share sentences by design: they are
    grouped by their whole text only.

    Parameters
    ----------
    manifest
        Of a data source.
    per_source
        Most training rows of a hub source; val and test get an eighth of it each.
    """
    dropped: Counter[str] = Counter()
    # A source without splits of its own is all "train" until it is carved.
    plan = dict(manifest.splits) or {"train": "all"}
    if manifest.registry == "hub":
        # More than is kept, for what repeats or leaks.
        limits = {
            theirs: per_source * 3 // 2 if ours == "train" else per_source // 4
            for ours, theirs in plan.items()
        }
        raw, dropped["invalid"] = hub.read_hub(manifest, limits)
    else:
        raw = read_packaged(manifest)
    items: list[Item] = []
    home: list[str] = []
    for ours, theirs in plan.items():
        items += raw[theirs]
        home += [ours] * len(raw[theirs])
    kept = _without_repeats(items, dropped)
    items, home = [items[row] for row in kept], [home[row] for row in kept]
    pairs = []
    if manifest.registry != "generated":
        pairs = near_duplicates([str(item.state) for item in items])
    groups = link_groups([item.group for item in items], pairs)
    carved = ["train", *(s for s in SPLITS[1:] if s not in plan)]
    if "train" in plan:
        mine = [row for row, ours in enumerate(home) if ours == "train"]
        shares = [1 - 0.1 * (len(carved) - 1), *[0.1] * (len(carved) - 1)]
        parts = split_by_group([groups[row] for row in mine], shares, seed=0)
        for row, part in zip(mine, parts.tolist(), strict=True):
            home[row] = carved[part]
    splits: dict[str, list[Item]] = {split: [] for split in SPLITS}
    owner: dict[str, str] = {}
    for split in SPLITS:
        for item, ours, group in zip(items, home, groups, strict=True):
            if ours == split and owner.setdefault(group, split) == split:
                splits[split].append(item)
            elif ours == split:
                dropped["leak"] += 1
    for split, found in splits.items():
        by_id = {item.id: item for item in found}
        ordered = [by_id[key] for key in stable_order(by_id, 0)]
        if manifest.registry == "hub":
            ordered = ordered[: per_source if split == "train" else per_source // 8]
        splits[split] = ordered
    left_out = {k: n for k, n in sorted(dropped.items()) if n}
    return Built(manifest.name, splits, left_out, len(pairs))


def read_lock() -> dict[str, dict[str, Any]]:
    """Recorded `Built.summary` of each source that was ever locked."""
    path = manifest_dir() / "lock.yaml"
    return (yaml.safe_load(path.read_text("utf-8")) or {}) if path.is_file() else {}


def check_lock(built: Built) -> bool:
    """Whether the build is locked; raise if it is and its bytes differ.

    Raises
    ------
    HashMismatch
        Names the split, both hashes, and the mend.
    """
    locked = read_lock().get(built.name)
    if locked is None:
        return False
    found = built.summary()["splits"]
    for split in SPLITS:
        if locked["splits"][split] != found[split]:
            raise HashMismatch(
                f"{built.name}: the built split {split!r} differs from the lock.\n"
                f"  expected {locked['splits'][split]}\n  found    {found[split]}\n"
                "A source, a converter or a library changed. Find out which; if the "
                f"change is meant, run `rlcd data build {built.name} --update-lock`."
            )
    return True


def build_and_store(name: str, update_lock: bool = False, fresh: bool = False) -> Built:
    """Build a source into the cache, or read it from there, and check its lock.

    Parameters
    ----------
    name
        A name from `data_names`.
    update_lock
        Record the hashes of this build instead of checking them.
    fresh
        Build again even if the cache has it.

    Raises
    ------
    HashMismatch
        The bytes differ from the lock.
    SourceError
        The source cannot be had; the message says why and what to do.
    """
    manifest = load_manifest(name)
    if manifest.kind == "model":
        raise SourceError(f"{name} is a model; `fetch` brings it, nothing is built.")
    folder = cache_dir() / "built" / name
    paths = {split: folder / f"{split}.jsonl" for split in SPLITS}
    locked = read_lock().get(name)
    stored = {s: p.read_bytes() for s, p in paths.items() if p.is_file()}
    if locked and not (fresh or update_lock) and len(stored) == len(SPLITS):
        want = {s: locked["splits"][s]["sha256"] for s in SPLITS}
        if want == {s: hashlib.sha256(stored[s]).hexdigest() for s in SPLITS}:
            splits = {split: from_jsonl(stored[split]) for split in SPLITS}
            return Built(name, splits, locked["dropped"], locked["near_duplicates"])
    built = build(manifest)
    if update_lock:
        _record(built)
    else:
        check_lock(built)
    for split, path in paths.items():
        write_atomically(path, to_jsonl(built.splits[split]))
    return built


def _record(built: Built) -> None:
    path = manifest_dir() / "lock.yaml"
    with FileLock(cache_dir() / ".lock.yaml.lock"):
        lock = {**read_lock(), built.name: built.summary()}
        head = (
            "# Built splits and facts for the card: `rlcd data build --update-lock`.\n"
        )
        text = head + yaml.safe_dump(dict(sorted(lock.items())), sort_keys=False)
        write_atomically(path, text.encode())


def load_items(name: str, split: str) -> list[Item]:
    """Items of one built split, in their fixed order; built and checked if need be.

    Examples
    --------
    >>> load_items("trec", "test")[0].question.kind  # doctest: +SKIP
    'choice'
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, not {split!r}")
    return list(build_and_store(name).splits[split])


def mix(names: Sequence[str], per_source: int, seed: int = 0) -> dict[str, list[Item]]:
    """Mix sources as the protocol does, and show their options.

    At most `per_source` training rows of each source, an eighth of that for val and
    test; unordered options in subsets where the manifest says so, with NOTA, shuffled;
    rows of all sources in one random order fixed by `seed`.

    Returns
    -------
    dict
        "train", "val", "test" -> items.
    """
    rows: dict[str, dict[str, Item]] = {split: {} for split in SPLITS}
    for name in names:
        subset = load_manifest(name).subset
        for split, items in build_and_store(name).splits.items():
            most = per_source if split == "train" else per_source // 8
            for item in present(
                items[:most],
                seed,
                nota=True,
                subset=(subset[0], subset[1]) if subset else None,
                shuffle=True,
            ):
                rows[split][f"{name}:{item.id}"] = item
    return {
        s: [found[key] for key in stable_order(found, seed)]
        for s, found in rows.items()
    }


def card(names: Sequence[str]) -> str:
    """The data card, a page of two Markdown tables, from manifests and lock alone.

    A source that is not in the lock is listed with the rows of its manifest.
    """
    lock = read_lock()
    sources: list[list[str]] = []
    shapes: list[list[str]] = []
    for name in names:
        manifest, facts = load_manifest(name), lock.get(name)
        origin = f"{manifest.title} ({manifest.where})"
        row = [name, origin, manifest.licence, manifest.use]
        if facts is None:
            rows = ", ".join(f"{k} {n:,}" for k, n in manifest.rows.items())
            sources.append([*row, f"in the source: {rows}; not built here", "", ""])
            continue
        rows = " / ".join(f"{facts['splits'][s]['rows']:,}" for s in SPLITS)
        gone = ", ".join(f"{n:,} {why}" for why, n in facts["dropped"].items())
        sources.append([*row, rows, gone, f"{facts['near_duplicates']:,}"])
        options = ", ".join(f"{k}: {n:,}" for k, n in facts["options"].items())
        lengths = " / ".join(str(x) for x in facts["characters"].values())
        shares = ", ".join(f"{k} {x:.3f}" for k, x in facts["shares"].items())
        shapes.append([name, ", ".join(facts["kinds"]), options, lengths, shares])
    return CARD.format(sources=_lines(sources), shapes=_lines(shapes))


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """Rows of a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
