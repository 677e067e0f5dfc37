"""The command line: ``rlcd`` or ``python -m rlcd_core``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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

_SERVE = ("fastapi", "pydantic", "starlette", "uvicorn")


class Commands(typer.core.TyperGroup):
    """A reader's mistake or a machine's refusal is one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; sources and files that cannot be used end it with status 1."""
        try:
            with warnings.catch_warnings():
                # The place in an installed package says nothing to whoever typed this.
                warnings.showwarning = lambda message, *_: typer.echo(
                    f"rlcd: {message}", err=True
                )
                return super().invoke(ctx)
        except (SourceError, OSError) as error:
            typer.echo(f"rlcd: {error}", err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("rlcd_core"):
                raise
            extra = "serve" if error.name in _SERVE else "train"
            typer.echo(
                f"rlcd: this needs {error.name}, which a plain installation leaves "
                f'out: pip install "rlcd-core[{extra}]"',
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

        if fresh:
            fetch(name)  # a converted model would hide what it was converted from
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
    arm: Annotated[
        str | None, typer.Option(help="Train the runs of this arm alone.")
    ] = None,
) -> None:
    """Train the runs of a family that have no record, and keep the records."""
    from rlcd_core.extra import grid  # torch is imported only here

    if family is None:
        for name, make in grid.FAMILIES.items():
            typer.echo(f"{name:14} {grid.first_line(make)}")
        return
    try:
        count = grid.run_family(family, n_jobs=jobs, limit=limit, arm=arm)
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0])) from error
    typer.echo(f"{family}: {count:,} records in {grid.Store(family).path.name}")


@app.command("check")
def check_model(
    model: Annotated[
        str,
        typer.Argument(help="Folder, model of a manifest, or owner/name@revision."),
    ],
    kind: Annotated[str, typer.Option(help="causal or masked")] = "causal",
    questions: Annotated[int, typer.Option(min=4, help="Tickets asked.")] = 12,
    outcomes: Annotated[
        int, typer.Option(min=1, help="Size of the run whose time is predicted.")
    ] = 64_000,
) -> None:
    """Check a model as a policy before it is trained; status 1 if a check fails."""
    from rlcd_core.extra import check  # torch is imported only here

    failed = []
    folder = check.model_folder(model)
    for row in check.examine(folder, kind, questions=questions, outcomes=outcomes):
        typer.echo(check.line(row))
        if row.passed is False:
            failed.append(row.name)
    if failed:
        typer.echo(f"rlcd: {len(failed)} failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


Policy = Annotated[
    Path | None,
    typer.Option(help="Folder of a model or an export; default the packaged SmolLM2."),
]
Questions = Annotated[
    Path | None,
    typer.Option(help="JSON file: a JSON schema, or names to kind, text and options."),
]
ChoiceFlag = Annotated[
    list[str] | None, typer.Option(help="NAME=TEXT | OPTION | OPTION, repeatable.")
]
ScoreFlag = Annotated[
    list[str] | None, typer.Option(help="NAME=TEXT | LOWEST | ... | HIGHEST.")
]
NoulFlag = Annotated[list[str] | None, typer.Option(help="NAME=TEXT, yes or no.")]


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What a policy or a question refuses, as one line and status 1."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"rlcd: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


@app.command("ask")
def ask(
    state: Annotated[
        str | None, typer.Argument(help="The state; - reads standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="File that holds the state.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The state is JSON: fields, or turns.")
    ] = False,
    questions: Questions = None,
    choice: ChoiceFlag = None,
    score: ScoreFlag = None,
    noul: NoulFlag = None,
    policy: Policy = None,
    values: Annotated[bool, typer.Option(help="Print the values alone.")] = False,
) -> None:
    """Answer typed questions about one state, as JSON."""
    with _in_one_line():
        from rlcd_core.extra import asking  # torch is imported only here

        flags = {"choice": choice, "score": score, "noul": noul}
        if policy is None:  # then a mistake is told before the model is loaded
            asking.gather_questions(questions, flags)
        given = asking.read_state(state, file, as_json)
        decider = asking.load_decider(policy)
        asked = asking.gather_questions(questions, flags, decider)
        answers = decider.ask(given, asked)
        typer.echo(asking.written(asked, answers, values, decider))


@app.command("score")
def score_rows(
    source: Annotated[Path, typer.Argument(help="JSONL, CSV or Parquet.")],
    target: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    questions: Questions = None,
    choice: ChoiceFlag = None,
    score: ScoreFlag = None,
    noul: NoulFlag = None,
    policy: Policy = None,
    state: Annotated[str, typer.Option(help="Column of the state.")] = "state",
    key: Annotated[str, typer.Option("--id", help="Column of the id.")] = "id",
    keep_state: Annotated[bool, typer.Option(help="Write the states too.")] = False,
    on_error: Annotated[
        str, typer.Option(help="stop at a row that cannot be answered, or keep it.")
    ] = "stop",
    part_rows: Annotated[int, typer.Option(min=1, help="Rows lost by a kill.")] = 2000,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 64,
    restart: Annotated[
        bool, typer.Option(help="Throw away the output and what a kill left.")
    ] = False,
) -> None:
    """Answer the same questions about every row of a file; resumes after a kill."""
    with _in_one_line():
        from rlcd_core.extra import asking, batching, bulk

        flags = {"choice": choice, "score": score, "noul": noul}
        decider = asking.load_decider(policy)
        asked = asking.gather_questions(questions, flags, decider)
        batching.leave_no_trace(decider.policy)
        report = bulk.score_file(
            decider,
            asked,
            source,
            target,
            state=state,
            key=key,
            keep_state=keep_state,
            on_error=on_error,  # type: ignore[arg-type]
            part_rows=part_rows,
            batch_rows=batch_rows,
            restart=restart,
        )
    earlier = f", {report.resumed:,} by an earlier run" if report.resumed else ""
    typer.echo(f"{target}: {report.rows:,} rows{earlier}, {report.errors:,} errors")


@app.command("serve")
def serve(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A model or an export; default the packaged SmolLM2."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    batch: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    waiting: Annotated[int, typer.Option(min=1, help="Requests in the queue.")] = 64,
    seconds: Annotated[float, typer.Option(help="Time limit of a request.")] = 30.0,
    state_characters: Annotated[int, typer.Option(min=1)] = 50_000,
) -> None:
    """Answer typed questions over HTTP: POST /ask, GET /health."""
    with _in_one_line():
        from rlcd_core.extra import asking, batching, service

        limits = service.Limits(
            batch=batch,
            waiting=waiting,
            seconds=seconds,
            state_characters=state_characters,
            body_bytes=max(service.Limits.body_bytes, 16 * state_characters),
        )
        decider = asking.load_decider(folder)
        batching.leave_no_trace(decider.policy)
        files = service.file_hashes(asking.folder_of(folder))
        app_ = service.make_app(
            decider,
            limits=limits,
            model=folder.resolve().name if folder else "SmolLM2-135M-Instruct",
            files=files,
        )
        service.serve(app_, host, port)


@app.command("fit")
def fit_log(
    log: Annotated[Path, typer.Argument(help="Past decisions: CSV, JSONL, Parquet.")],
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist.")],
    error: Annotated[
        float, typer.Option(help="Largest share of acts that may be wrong.")
    ] = 0.05,
    delta: Annotated[
        float, typer.Option(help="Chance that the gate's promise fails.")
    ] = 0.1,
    objective: Annotated[
        str, typer.Option(help="verdict_nll, verdict_brier, rlcd, rlcd_ips, rlcd_snips")
    ] = "verdict_nll",
    epochs: Annotated[int | None, typer.Option(help="Times a row is used.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Most rows kept, a sample of a longer log.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="JSON: names in the log to kind, text, options.")
    ] = None,
    truncate: Annotated[
        bool, typer.Option(help="Cut states that the encoder cannot read whole.")
    ] = False,
    copy_encoder: Annotated[
        bool, typer.Option(help="Copy the encoder in: 91 MB, and nothing to fetch.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the split and of the training.")] = 0,
) -> None:
    """Make a calibrated, gated, exported decider of a log, with an audit page."""
    with _in_one_line():
        from rlcd_core.extra import fit  # torch is imported only here

        given = {"epochs": epochs, "limit": limit}
        config = fit.FitConfig(
            error=error,
            delta=delta,
            objective=objective,
            seed=seed,
            **{name: value for name, value in given.items() if value is not None},
        )
        found = fit.fit(
            log,
            out,
            config,
            questions=fit.read_questions(questions),
            truncate=truncate,
            copy_encoder=copy_encoder,
            progress=True,
        )
        for line in found.lines():
            typer.echo(line)
        typer.echo(f"the decider, its card and its audit page: {out}")


if __name__ == "__main__":
    app()
