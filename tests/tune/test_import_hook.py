"""A finder that calls back after the import of certain modules, and is invisible otherwise."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from jaxrl_stack.tune.import_hook import AfterImport


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Write modules, and watch some of them: ``watch({name: source}, {name: callback})``."""
    installed = []

    def start(sources, callbacks):
        for name, source in sources.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        finder = AfterImport(callbacks)
        sys.meta_path.insert(0, finder)
        installed.append(finder)

    before = set(sys.modules)
    yield start
    for finder in installed:
        sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_it_calls_back_once_when_the_code_of_the_module_has_run(watch):
    seen = []
    watch(
        {"hooked_a.py": "import hooked_b\nvalue = hooked_b.value + 1", "hooked_b.py": "value = 1"},
        {"hooked_a": lambda: seen.append(sys.modules["hooked_a"].value)},
    )
    import hooked_b

    assert seen == [] and hooked_b.value == 1
    import hooked_a

    assert seen == [2]
    assert "exec_module" not in vars(hooked_a.__loader__), "the loader is as it was"
    assert type(hooked_a.__loader__) is type(hooked_b.__loader__) and hooked_a.__spec__.origin.endswith("hooked_a.py")
    importlib.import_module("hooked_a")
    assert seen == [2]


def test_it_calls_back_for_a_submodule_and_leaves_its_package_alone(watch):
    seen = []
    watch(
        {"hooked_package/__init__.py": "", "hooked_package/inner.py": "value = 3"},
        {"hooked_package.inner": lambda: seen.append(sys.modules["hooked_package.inner"].value)},
    )
    import hooked_package

    assert seen == []
    from hooked_package.inner import value

    assert seen == [value] == [3] and hooked_package.inner.value == 3


def test_a_module_that_fails_or_does_not_exist_raises_what_it_raises_without_it(watch):
    seen = []
    watch({"hooked_bad.py": "1 / 0"}, {name: lambda: seen.append(1) for name in ("hooked_bad", "hooked_absent")})
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("hooked_bad")
    with pytest.raises(ModuleNotFoundError, match="hooked_absent"):
        importlib.import_module("hooked_absent")
    assert importlib.util.find_spec("hooked_absent") is None
    assert seen == []


def test_looking_for_a_module_is_not_importing_it(watch):
    seen = []
    watch({"hooked_c.py": "value = 4"}, {"hooked_c": lambda: seen.append(1)})
    assert importlib.util.find_spec("hooked_c") is not None
    assert seen == []
    import hooked_c

    assert seen == [1] and hooked_c.value == 4
