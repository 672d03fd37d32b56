"""A site is replaced whole: the next one is made ready beside it, then exchanged with it in one step.

The site that was replaced stays as a spare, and the next build starts from it: only what changed is written.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from evalharness.errors import StoreError

MANIFEST: Final = ".build.json"
PAGES: Final = "tasks"  # the folder whose pages may disappear
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
Signatures = dict[str, str]


class SiteDraft:
    """The site while it is made ready in `folder`. Folders of runs are kept while their signature is the same;
    their files are shared with the site in use, and are therefore never written to again."""

    def __init__(self, folder: Path, site: Path, generator: str) -> None:
        self.folder, self.site = folder, site
        self.here, self.there = _signatures(folder, generator), _signatures(site, generator)
        self.kept: Signatures = {}
        self.pages: set[str] = set()
        self.folders: set[Path] = set()
        (folder / MANIFEST).unlink(missing_ok=True)  # from here on it is not whole

    def write(self, name: str, text: str | bytes) -> None:
        """Write the page `name`."""
        self._place(name).write_bytes(text.encode() if isinstance(text, str) else text)
        self.pages.add(name)

    def copy(self, source: Path, name: str) -> None:
        """Copy a file of a run into the site."""
        shutil.copyfile(source, self._place(name))

    def _place(self, name: str) -> Path:
        """Where the file `name` goes, its folder made."""
        path = self.folder / name
        if path.parent not in self.folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.folders.add(path.parent)
        return path

    def keep(self, name: str, signature: str) -> bool:
        """Keep the folder `name` of this signature; False where it has to be made, into an empty place."""
        self.kept[name] = signature
        if self.here.get(name) == signature:
            return True
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.there.get(name) == signature and _linked(self.site / name, self.folder / name)

    def finish(self, manifest: dict[str, Any]) -> None:
        """Remove what no longer belongs to the site, and mark it whole."""
        for gone in self.here.keys() - self.kept.keys():
            shutil.rmtree(self.folder / gone, ignore_errors=True)
        for page in (self.folder / PAGES).glob("*.html"):
            if f"{PAGES}/{page.name}" not in self.pages:
                page.unlink()
        (self.folder / MANIFEST).write_text(json.dumps({**manifest, "runs": self.kept}), encoding="utf-8")


@contextmanager
def replacing(site: Path, generator: str) -> Iterator[SiteDraft]:
    """Make a site ready and put it in the place of `site`. A second builder waits for the first. Folders made by
    another `generator` are made anew.

    Raises:
        StoreError: the folder cannot be written, or holds something that is not a site of evalharness.
    """
    site = site.absolute()
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with (site.parent / f".{site.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _refuse_foreign(site)
            spare = site.parent / f".{site.name}.spare"
            if not (spare / MANIFEST).exists():
                shutil.rmtree(spare, ignore_errors=True)
            spare.mkdir(exist_ok=True)
            draft = SiteDraft(spare, site, generator)
            yield draft
            draft.finish({"generator": generator})
            _exchange(spare, site)
    except OSError as error:
        raise StoreError(
            f"Cannot write the site {site}: {error.strerror or error}.", "Free space, or choose another --out."
        ) from error


def _signatures(site: Path, generator: str) -> Signatures:
    """Signature of each run's folder in a site that is whole and made by `generator`."""
    try:
        found = json.loads((site / MANIFEST).read_text(encoding="utf-8"))
        same = found["generator"] == generator
        return {str(name): str(mark) for name, mark in found["runs"].items()} if same else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _linked(source: Path, target: Path) -> bool:
    """Share the files of one folder with another; False where it is not there."""
    try:
        target.mkdir(parents=True)
        with os.scandir(source) as found:
            for entry in found:
                os.link(entry.path, target / entry.name)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def _refuse_foreign(site: Path) -> None:
    if site.is_dir() and any(site.iterdir()) and not (site / MANIFEST).exists():
        raise StoreError(f"{site} holds files that are not a dashboard.", "Choose a new folder with --out.")


def _exchange(fresh: Path, site: Path) -> None:
    """Swap two folders in one step where the kernel can, in three renames where it cannot."""
    if not site.exists():
        fresh.rename(site)
        return
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.renameat2(AT_FDCWD, os.fsencode(fresh), AT_FDCWD, os.fsencode(site), RENAME_EXCHANGE)
        if failed == 0:
            return
        if ctypes.get_errno() not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except AttributeError:  # a libc without renameat2
        pass
    aside = site.with_name(f".{site.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    site.rename(aside)
    fresh.rename(site)
    aside.rename(fresh)
