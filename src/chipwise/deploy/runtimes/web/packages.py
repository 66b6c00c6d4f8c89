"""npm packages that pages run: pinned versions, checked by npm's own hash and kept in the user's cache folder.

``python -m chipwise.deploy.runtimes.web.packages`` fetches all of them. Only the listed files of a package are kept;
nothing of a package is executed here, and npm itself is not needed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from chipwise.core.files import refused_files
from chipwise.core.places import cache_folder
from chipwise.errors import Unreachable

REGISTRY = "https://registry.npmjs.org"
FETCH = "python -m chipwise.deploy.runtimes.web.packages"
WAIT_S = 60.0  # time limit in seconds of each read from the registry
MOST_BYTES = 2**27


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One npm package at one version."""

    name: str
    version: str
    sha512: str  # hash of the archive, in base64, as ``npm view NAME dist.integrity`` gives it
    files: tuple[str, ...]  # files that a page loads, by their paths in the archive

    @property
    def folder(self) -> Path:
        """Where the files are kept."""
        return cache_folder() / "npm" / f"{self.name.replace('/', '+')}-{self.version}"

    @property
    def address(self) -> str:
        """The archive in npm's registry."""
        return f"{REGISTRY}/{self.name}/-/{self.name.rpartition('/')[2]}-{self.version}.tgz"

    @property
    def kept(self) -> bool:
        """Whether the files are in the cache."""
        return all((self.folder / name).is_file() for name in self.names)

    @property
    def names(self) -> Mapping[str, str]:
        """Maps names of files in the cache to paths in the archive. If files have equal names, the name of each file's
        folder is put in front.

        >>> WLLAMA.names["single-thread-wllama.wasm"]
        'package/esm/single-thread/wllama.wasm'
        """
        plain = Counter(Path(file).name for file in self.files)
        return {"-".join(Path(file).parts[-min(plain[Path(file).name], 2) :]): file for file in self.files}


ORT = Package(
    name="onnxruntime-web",
    version="1.30.0",
    sha512="q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    files=(
        "package/dist/ort.wasm.bundle.min.mjs",
        "package/dist/ort-wasm-simd-threaded.mjs",
        "package/dist/ort-wasm-simd-threaded.wasm",
    ),
)
WLLAMA = Package(
    name="@wllama/wllama",
    version="2.3.5",
    sha512="R8C9ajDt4c8/z9et84G+YHSG9hxzC2gEU0F4bMUBwtMW89ux/o1WirJ/E9CONU3llCLLdBdqoa7NyLG6ERSuhw==",
    files=(
        "package/esm/index.min.js",
        "package/esm/single-thread/wllama.wasm",
        "package/esm/multi-thread/wllama.wasm",
    ),
)
"""The last release with decode and getLogits, which work on tokens; 3.0 and later only complete text."""
PACKAGES = (ORT, WLLAMA)


def files_of(package: Package) -> Mapping[str, Path]:
    """The files of ``package`` by name, from the cache, or from npm's registry the first time.

    Raises:
        Unreachable: The package is not in the cache and cannot be fetched, or differs from the pinned one.
        StorageError: The cache folder cannot be written.
    """
    if not package.kept:
        _keep(package, _fetched(package))
    return {name: package.folder / name for name in package.names}


def _fetched(package: Package) -> bytes:
    title = f"{package.name} {package.version}"
    try:
        with urllib.request.urlopen(package.address, timeout=WAIT_S) as answer:
            content: bytes = answer.read(MOST_BYTES)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(
            f"{title} is not in {cache_folder() / 'npm'}, and npm's package index cannot be reached ({reason}); with a "
            f"connection, fetch it once with: {FETCH}; or copy that folder from another machine"
        ) from None
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != package.sha512:
        raise Unreachable(
            f"{package.address} is not the pinned {title}: its hash differs, so the download was discarded"
        )
    return content


def _keep(package: Package, archive: bytes) -> None:
    with refused_files():
        package.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=package.folder.parent) as room:
            with tarfile.open(fileobj=io.BytesIO(archive)) as held:
                for name, file in package.names.items():
                    if (member := held.extractfile(file)) is not None:
                        (Path(room) / name).write_bytes(member.read())
            package.folder.mkdir(exist_ok=True)
            for path in Path(room).iterdir():
                shutil.move(path, package.folder / path.name)


if __name__ == "__main__":
    for each in PACKAGES:
        files_of(each)
        print(f"{each.name} {each.version}: {each.folder}")
    sys.exit(0)
