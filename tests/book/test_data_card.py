"""The data card in the book is the one that the manifests give now."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from rlcd_core.__main__ import app

ROOT = Path(__file__).resolve().parents[2]


def test_committed_card_is_fresh(tmp_path: Path) -> None:
    """The page equals what the command writes, byte for byte."""
    fresh = tmp_path / "data_card.md"
    done = CliRunner().invoke(app, ["data", "card", "--output", str(fresh)])
    assert done.exit_code == 0, done.output
    committed = (ROOT / "book" / "data_card.md").read_bytes()
    assert fresh.read_bytes() == committed, (
        "run `rlcd data card --output book/data_card.md`"
    )
    assert committed.startswith(b"# Data card\n")
