"""Files: paths are literal, writes are atomic, and errors of the disk become one-line messages."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import socket
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from tfvmf.errors import UserError

if TYPE_CHECKING:
    import numpy as np

Path = str | os.PathLike[str]

SHIPPED = pathlib.Path(__file__).parent / "shipped"  # models that come with the package

_FULL = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
_REFUSED = [
    os.strerror(code)
    for code in (
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    )
]
_ELSEWHERE = "choose another place"
# An npz file may expand to 2 GiB, or 100 times its length. Real data do not compress that well.
_EXPANDED, _EXPANSION = 2**31, 100


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(entry.name for entry in SHIPPED.glob("*/")) if SHIPPED.is_dir() else []


def find_model(model: Path) -> pathlib.Path:
    """The path of a model, or of the shipped model of this name; an existing path has priority."""
    path = pathlib.Path(model).expanduser()
    named = not path.exists() and os.fspath(model) in shipped_models()
    return SHIPPED / path if named else path


def beside(model: pathlib.Path) -> pathlib.Path:
    """The directory for results about a run: the run itself, or `runs/NAME` for a shipped model."""
    return pathlib.Path("runs", model.name) if model.parent == SHIPPED else model


@contextlib.contextmanager
def writing(path: Path, *, advice: str = _ELSEWHERE, then: str = "") -> Iterator[None]:
    """Turns write errors into one line with `advice` (if the disk is not full) and `then`."""
    try:
        yield
    except Exception as error:
        text = getattr(error, "strerror", None) or str(error)
        # TensorFlow and HDF5 embed the system's message in a long one.
        reason = next((words for words in (*_FULL, *_REFUSED) if words in text), "")
        if isinstance(error, UserError) or not (reason or isinstance(error, OSError)):
            raise
        remedy = "make room" if reason in _FULL else advice
        raise UserError(
            f"{os.fspath(path)} cannot be written: {reason or text}: {remedy}{then}"
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that gets its name once it is complete; creates its directory if needed."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}{_mark()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        try:
            with temporary.open("wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(directory: Path, *, advice: str = _ELSEWHERE) -> Iterator[pathlib.Path]:
    """A temporary directory inside `directory`."""
    with writing(directory, advice=advice):
        os.makedirs(directory, exist_ok=True)
        _sweep(pathlib.Path(directory))
        place = tempfile.mkdtemp(prefix=".", suffix=_mark(), dir=directory)
        try:
            yield pathlib.Path(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _mark() -> str:
    """The suffix of this process's temporary files."""
    return f".{socket.gethostname()}-{os.getpid()}.tmp"


def _sweep(directory: pathlib.Path) -> None:
    """Deletes temporary files of killed processes of this machine."""
    name = re.compile(rf"\..*\.{re.escape(socket.gethostname())}-(\d{{1,9}})\.tmp")
    with contextlib.suppress(OSError):  # owned by another user
        for entry in os.listdir(directory):
            found, path = name.fullmatch(entry), directory / entry
            if found and not _alive(int(found[1])):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # a process of another user is alive
        return not isinstance(error, ProcessLookupError)
    return True


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file; bytes of file names that are not valid text are escaped."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns read errors into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{os.fspath(path)} cannot be read: {reason}") from error


def read_text(path: Path) -> str | None:
    """The text of a file, None if it does not exist; UserError if it cannot be read."""
    with reading(path):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise UserError(f"{os.fspath(path)} is not a file")
            return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):  # a link to a disk that is not mounted
                raise
            return None


@contextlib.contextmanager
def literal(directory: Path) -> Iterator[str]:
    """A path to the same directory that TensorFlow's readers do not interpret as a pattern."""
    directory = pathlib.Path(directory).absolute()
    if not set(str(directory)) & set("*?[\\"):
        yield str(directory)
        return
    with tempfile.TemporaryDirectory(prefix="tfvmf-") as place:
        link = os.path.join(place, "link")
        os.symlink(directory, link)
        yield link


def open_npz(path: Path) -> zipfile.ZipFile:
    """Opens an npz file; ValueError if it is not a regular file, or would expand too much."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for a writer
        raise ValueError("not a regular file")
    archive = zipfile.ZipFile(path)
    expanded = sum(member.file_size for member in archive.infolist())
    if expanded > max(_EXPANDED, _EXPANSION * status.st_size):
        archive.close()
        raise ValueError(f"its {status.st_size:,} bytes would expand to {expanded:,}")
    return archive


def open_array(
    archive: zipfile.ZipFile, key: str
) -> tuple[tuple[int, ...], "np.dtype", bool, IO[bytes]]:
    """Shape, type, whether stored by columns, content; ValueError if truncated or of objects."""
    import numpy as np

    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("compressed in a way that NumPy does not write")
    file = archive.open(info)
    old = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("holds Python objects; save numbers instead")
    found = info.file_size - file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != found:
        raise ValueError(f"{found:,} bytes do not fit its header, {shape} of {dtype}")
    return shape, dtype, by_columns, file


def read_array(archive: zipfile.ZipFile, key: str) -> "np.ndarray":
    """An array of an npz file, after a check of its header."""
    import numpy as np

    open_array(archive, key)
    with archive.open(f"{key}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def arrays(path: Path) -> Iterator[dict[str, "np.ndarray"]]:
    """The plain arrays of an .npz file; errors, also in the `with` block, become one line."""
    try:
        with open_npz(path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
            found = {key: read_array(archive, key) for key in keys}
        yield found
    except (
        *(OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{os.fspath(path)} was not written by tfvmf, or is damaged: {reason}"
        ) from error


def copy(source: Path, target: Path) -> None:
    """Copies a file or a directory, and replaces the target."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    if source.is_file():
        with source.open("rb") as reading, replacing(target) as file:
            shutil.copyfileobj(reading, file)
        return
    with scratch(target.parent) as place:
        shutil.copytree(source, place / "new")
        shutil.rmtree(target, ignore_errors=True)
        (place / "new").replace(target)


def fingerprint(path: Path) -> str:
    """A hash of a file, or of all files of a directory with their names."""
    path = pathlib.Path(path)
    digest = hashlib.sha256()
    with reading(path):
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(path).as_posix()
            digest.update(f"{name}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
            with file.open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:32]


@contextlib.contextmanager
def lock(workdir: pathlib.Path) -> Iterator[None]:
    """Locks a directory, created if needed, until the process ends; the file `.lock` stays."""
    path = workdir / ".lock"
    with writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        file = path.open("ab+", buffering=0)
    with file:
        with writing(workdir):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                other = file.read().decode(errors="replace").strip() or "another process"
                raise UserError(
                    f"--workdir={workdir} is in use by {other}: wait until it ends, or choose "
                    "another --workdir"
                ) from error
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


# Spreadsheets interpret text that starts with one of these as a formula.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def csv_text(text: str) -> str:
    """A text as a cell of a CSV file, never a formula. `csv_text_back` is the inverse."""
    started = text.replace("'", " ").lstrip().startswith(_FORMULA)
    return f"'{text}" if started and not is_number(text) else text


def csv_text_back(cell: str) -> str:
    """The text of a cell made by `csv_text`."""
    return cell[1:] if cell.startswith("'") and csv_text(cell[1:]) == cell else cell


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
