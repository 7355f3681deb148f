"""Disks without room, and users without rights."""

import contextlib
import os
import resource
import subprocess

import pytest


@contextlib.contextmanager
def full_disk(directory, *, size="2m", filled=False, read_only=False, prepare=None):
    """A small disk, for those who may mount one.

    Args:
        directory: Where; it is made.
        size: Of the disk.
        filled: Whether no byte is free.
        read_only: Whether it cannot be written.
        prepare: Called with the directory before the disk is filled or protected.
    """
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tfvmf-test", str(directory)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        if prepare:
            prepare(directory)
        if filled:
            with contextlib.suppress(OSError), open(directory / "filler", "wb", 0) as file:
                while True:
                    file.write(bytes(4096))
        if read_only:
            subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextlib.contextmanager
def small_files(directory):
    """Files of at most 150 kB: what a quota does, for those who may not mount."""
    directory.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def as_nobody(function):
    """What a function raises in a process without rights, as "Type: message"; "" for nothing."""
    if os.getuid():
        pytest.skip("needs the right to give up rights")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        message = ""
        try:
            os.setgroups([])
            os.setuid(65534)
            function()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writing, message.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, encoding="utf-8") as pipe:
        return pipe.read()
