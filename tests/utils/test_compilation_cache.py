"""The folder of compiled programs: one per kind of CPU, of this user alone, bounded."""

from __future__ import annotations

import os

import jax
import pytest

from jaxrl_stack.utils import compilation_cache
from jaxrl_stack.utils.compilation_cache import enable_compilation_cache

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
CPU = "processor: 0\nmodel name: A\nflags: fpu avx2\ncpu MHz: 1000\n\nprocessor: 1\nmodel name: A\nflags: fpu avx2\n"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    """No directory is configured in JAX; nothing compiles meanwhile."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    monkeypatch.setattr("jaxrl_stack.utils.notices._given", set())
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def used():
    return jax.config.values["jax_compilation_cache_dir"]


def test_it_is_made_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0o002)
    try:
        enable_compilation_cache("auto")
    finally:
        os.umask(before)
    assert os.path.dirname(used()) == str(tmp_path / "jaxrl_stack" / "xla")
    assert os.stat(used()).st_mode & 0o777 == 0o700
    first = used()
    enable_compilation_cache(str(tmp_path / "other"))
    assert used() == first and not (tmp_path / "other").exists()


def test_each_kind_of_cpu_has_its_own(tmp_path, monkeypatch):
    """Programs are native code: one for another CPU ends the process with an illegal instruction."""
    kinds = []
    for text in (CPU, CPU.replace("1000", "2000"), CPU.replace("avx2", "avx2 avx512f"), CPU.replace("A", "B")):
        (tmp_path / "cpuinfo").write_text(text)
        kinds.append(compilation_cache._kind_of_cpu(tmp_path / "cpuinfo"))
    assert kinds[0] == kinds[1] and len(set(kinds)) == 3
    assert compilation_cache._kind_of_cpu(tmp_path / "none")
    folders = set()
    for kind in kinds:
        monkeypatch.setattr(compilation_cache, "_kind_of_cpu", lambda kind=kind: kind)
        jax.config.update("jax_compilation_cache_dir", None)
        enable_compilation_cache(str(tmp_path / "shared"))
        folders.add(used())
    assert len(folders) == 3


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_one_that_others_may_write_to_is_not_used(tmp_path, caplog, mode):
    folder = tmp_path / compilation_cache._kind_of_cpu()
    folder.mkdir()
    folder.chmod(mode)
    enable_compilation_cache(str(tmp_path))
    assert used() is None
    assert f"others may write to it (mode {mode:o})" in caplog.text and "compilation_cache_dir=" in caplog.text


def test_one_of_another_user_is_not_used(tmp_path, caplog, monkeypatch):
    own = os.geteuid()
    (tmp_path / compilation_cache._kind_of_cpu()).mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    enable_compilation_cache(str(tmp_path))
    assert used() is None and f"belongs to the user with the id {own}" in caplog.text


def test_a_link_and_a_file_are_not_used(tmp_path, caplog):
    kind = compilation_cache._kind_of_cpu()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / kind).symlink_to(tmp_path / "elsewhere")
    enable_compilation_cache(str(tmp_path))
    assert used() is None and "it is a link" in caplog.text
    (tmp_path / "file").write_text("")
    enable_compilation_cache(str(tmp_path / "file"))
    assert used() is None and "it cannot be used" in caplog.text


def test_what_was_not_used_for_longest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MAX_CACHE_BYTES", 250)
    folder = tmp_path / compilation_cache._kind_of_cpu()
    folder.mkdir(mode=0o700)
    for age, name in enumerate(["new", "read", "old", "oldest"]):
        (folder / name).write_bytes(b"x" * 100)
        os.utime(folder / name, (10_000 - age, 10_000 - age))
    os.utime(folder / "read", (20_000, 1_000))
    enable_compilation_cache(str(tmp_path))
    assert used() == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["new", "read"]
