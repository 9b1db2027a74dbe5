"""The folder of files that are compiled or fetched and then run: its place, and proof that nobody else wrote it.

Whoever may write there can have their code run by whoever reads. So the folder, and every file that is opened in it,
has to belong to the reader or to root, and neither its group nor others may write it. A folder that root filled for all
is read, but not one of another user; root itself reads only root's. Each file is opened once, below a folder that is
already open, and judged when it is open: so it does not matter if its path changes meanwhile, and no link in the folder
is followed. New files and folders are the writer's alone (0700, 0600), whatever the umask.

The way to the folder has one rule, of what everybody may write (/tmp): it must be sticky, as others could exchange what
is in it otherwise, and links in it must be the reader's or root's. Owners and groups of parents are not judged: in
containers they are often unknown.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

_ANY_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_GROUP_OR_OTHERS, _OTHERS = 0o022, 0o002
_MOST_LINKS = 40  # as Linux has it


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns ``XEFLASH_CACHE_DIR``, or the user's cache folder; a folder below /tmp for a user without a home."""
    if given := environ.get("XEFLASH_CACHE_DIR"):
        return Path(given)
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "xeflash"
    home = _home(environ)
    if home is None:
        return Path(environ.get("TMPDIR") or "/tmp") / f"xeflash-{os.geteuid()}"
    return home / ".cache" / "xeflash"


def is_makeshift(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the folder lies below /tmp for want of a home."""
    return not (environ.get("XEFLASH_CACHE_DIR") or environ.get("XDG_CACHE_HOME") or _home(environ))


def _home(environ: Mapping[str, str]) -> Path | None:
    if given := environ.get("HOME"):
        return Path(given)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


class Refused(OSError):
    """An error for a file or folder that somebody else may have written; the text names it, the rule and the value."""


def _judge(path: Path, found: os.stat_result) -> None:
    """Raises Refused for a file or folder that somebody else may have written."""
    if found.st_uid not in (os.geteuid(), 0):
        whose = f"uid {os.geteuid()} or root" if os.geteuid() else "root"
        raise Refused(f"{path} must belong to {whose}, it belongs to uid {found.st_uid}")
    if found.st_mode & _GROUP_OR_OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise Refused(f"{path} must be writable by its owner only (chmod go-w), its mode is {mode:04o}")


class Folder:
    """An open folder that nobody else can write; its methods take names of files and folders in it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Takes ownership of the descriptor; raises Refused if the folder may be somebody else's work."""
        self.path, self._descriptor = path, descriptor
        try:
            _judge(path, os.fstat(descriptor))
        except Refused:
            os.close(descriptor)
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the folder's descriptor."""
        os.close(self._descriptor)

    def folder(self, name: str) -> Folder:
        """Opens a folder that exists in this one."""
        return Folder(self.path / name, os.open(name, _ANY_FOLDER, dir_fd=self._descriptor))

    def make(self, name: str) -> Folder:
        """Makes a new folder in this one, and opens it."""
        os.mkdir(name, 0o700, dir_fd=self._descriptor)
        os.chmod(name, 0o700, dir_fd=self._descriptor)  # whatever the umask took
        return self.folder(name)

    def is_writable(self) -> bool:
        """Returns whether files can be made in the folder; one of root's may be there for reading only."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self._descriptor, effective_ids=True)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Reads a file of at most `most_bytes` bytes."""
        with self._open(name, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
            size = os.fstat(descriptor).st_size
            if size > most_bytes:
                raise Refused(f"{self.path / name} must have at most {most_bytes} bytes, it has {size}")
            return file.read(most_bytes)

    def check(self, name: str) -> None:
        """Raises Refused for a file that somebody else may have written, and another OSError if there is none."""
        with self._open(name, os.O_RDONLY):
            pass

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file; others see the whole new file, or the old one."""
        aside = self.unused(name)
        try:
            with (
                self._open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor,
                open(descriptor, "wb", closefd=False) as file,
            ):
                file.write(content)
            self.move(aside, name)
        except OSError:  # a full disk
            self.remove(aside)
            raise

    @contextlib.contextmanager
    def lock(self, name: str, wait: bool = True) -> Iterator[None]:
        """Holds a lock, which the system releases if the process dies; raises BlockingIOError if it must not wait."""
        with self._open(name, os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def flush(self) -> None:
        """Returns when the disk has the names of the folder's files."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unused(self, name: str) -> str:
        """Returns a hidden name for a file that becomes `name` when it is complete."""
        return f".{name}.{os.urandom(8).hex()}"

    def move(self, old: str, new: str) -> None:
        """Renames a file or folder, and removes what has the new name already."""
        try:
            os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError:  # a folder with files, or of the other kind
            self.remove(new)
            os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with its content, if there is one."""
        _remove(self._descriptor, name)

    @contextlib.contextmanager
    def _open(self, name: str, how: int) -> Iterator[int]:
        """Opens a regular file of this user's; refuses pipes, devices and links."""
        how |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(name, how, 0o600, dir_fd=self._descriptor)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Refused(f"{self.path / name} must be a file, its mode is {stat.filemode(found.st_mode)}")
            _judge(self.path / name, found)
            if how & os.O_CREAT and found.st_uid == os.geteuid():
                os.fchmod(descriptor, 0o600)  # whatever the umask took
            yield descriptor
        finally:
            os.close(descriptor)


def _remove(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            for below in os.listdir(descriptor):
                _remove(descriptor, below)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=parent)


def open_folder(path: Path, make: bool = False) -> Folder:
    """Opens the folder at a path; `make` makes it and its parents if they are not there.

    Raises Refused for one that somebody else may have written, and other OSErrors if it cannot be had.
    """
    return Folder(path, _walk(path, make))


def is_private(path: Path) -> bool:
    """Returns whether there is a file that nobody else can have written, so that it may be run."""
    try:
        with open_folder(path.parent) as folder:
            folder.check(path.name)
    except OSError:
        return False
    return True


def _walk(path: Path, make: bool) -> int:
    """Opens a folder from the root, one name at a time; returns its descriptor."""
    names, links = _reversed_names(os.path.join(os.getcwd(), path)), 0
    with contextlib.ExitStack() as opened:

        def keep(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        at = keep(os.open("/", _ANY_FOLDER))
        while names:
            name = names.pop()
            within = os.fstat(at)
            for_all = bool(within.st_mode & _OTHERS)
            if for_all and not within.st_mode & stat.S_ISVTX:
                mode = stat.S_IMODE(within.st_mode)
                raise Refused(f"{_path_of(at)} must be sticky, as everybody may write it, its mode is {mode:04o}")
            try:
                at = keep(_step(at, name, make))
                continue
            except NotADirectoryError:
                link = keep(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at))
                found = os.fstat(link)
                if not stat.S_ISLNK(found.st_mode):
                    raise
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if for_all and found.st_uid not in (os.geteuid(), 0):
                raise Refused(f"{_path_of(link)} must not be somebody else's link, it belongs to uid {found.st_uid}")
            target = os.readlink("", dir_fd=link)
            names += _reversed_names(target)
            if target.startswith("/"):
                at = keep(os.open("/", _ANY_FOLDER))
        return os.dup(at)


def _step(at: int, name: str, make: bool) -> int:
    with contextlib.suppress(FileExistsError):
        try:
            return os.open(name, _ANY_FOLDER, dir_fd=at)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, 0o700, dir_fd=at)
    return os.open(name, _ANY_FOLDER, dir_fd=at)


def _reversed_names(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name]


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
