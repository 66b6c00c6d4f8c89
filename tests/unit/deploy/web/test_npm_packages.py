"""npm packages are pinned by hash, kept once, and a missing one says how to get it."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile

import pytest

from chipwise.deploy.runtimes.web import packages
from chipwise.deploy.runtimes.web.packages import Package, files_of
from chipwise.errors import Unreachable


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive in a registry that is a folder; the cache is a folder too."""
    monkeypatch.setenv("CHIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "REGISTRY", (tmp_path / "registry").as_uri())
    target = tmp_path / "registry" / "@x" / "tool" / "-" / "tool-1.0.0.tgz"
    target.parent.mkdir(parents=True)
    with tarfile.open(target, "w:gz") as held:
        for name, content in (("package/dist/tool.mjs", b"export {};"), ("package/install.js", b"harm();")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            held.addfile(entry, io.BytesIO(content))
    return target


def package(archive):
    sha512 = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return Package(name="@x/tool", version="1.0.0", sha512=sha512, files=("package/dist/tool.mjs",))


def test_a_package_is_fetched_once_and_only_listed_files_are_kept(archive):
    wanted = package(archive)
    assert not wanted.kept
    files = files_of(wanted)
    archive.unlink()
    assert files_of(wanted) == files
    assert files["tool.mjs"].read_bytes() == b"export {};"
    assert [path.name for path in wanted.folder.iterdir()] == ["tool.mjs"]


def test_another_archive_is_refused_and_nothing_is_kept(archive):
    wanted = package(archive)
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(Unreachable, match="its hash differs"):
        files_of(wanted)
    assert not wanted.folder.exists()


def test_without_a_connection_one_line_says_what_is_missing_and_how_to_get_it(archive):
    wanted = package(archive)
    archive.unlink()
    with pytest.raises(
        Unreachable, match=r"@x/tool 1\.0\.0 is not in .*fetch it once with: python -m chipwise"
    ) as told:
        files_of(wanted)
    assert "\n" not in str(told.value)
