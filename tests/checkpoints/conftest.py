"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import pytest


@pytest.fixture
def bucket(tmp_path):
    """A file system that is not known to be on this machine, which cannot rename folders, as object stores cannot."""
    import pyarrow.fs as fs
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    class Bucket(FSSpecHandler):
        def move(self, src, dest):
            raise NotImplementedError("folders cannot be renamed here")

    import fsspec

    (tmp_path / "bucket").mkdir()
    inner = fsspec.filesystem("dir", path=str(tmp_path / "bucket"), fs=fsspec.filesystem("file"))
    made = PyFileSystem(Bucket(inner))
    assert isinstance(made, fs.FileSystem)
    return made
