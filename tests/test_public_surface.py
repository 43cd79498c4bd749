"""The public surface against RLlib's: what is absent is known by name, with a reason (`website/parity_tables.py`)."""

from __future__ import annotations

import fnmatch
import json
import warnings

import numpy as np
import pytest

from website.links import ROOT
from website.parity_tables import KNOWN, MARK, TABLES, absent, resolve, surface, with_tables


def test_what_is_absent_is_known_by_name():
    """A name that is absent without a reason, or present in spite of one, fails."""
    found = absent()
    known = [name for names in KNOWN["absent"].values() for name in names]
    present = [path for rows in surface().values() for path, missing in rows.items() if missing != [""]]
    print(*found, sep="\n")
    unexplained = [name for name in found if not any(fnmatch.fnmatchcase(name, pattern) for pattern in known)]
    assert not unexplained, "absent: give the reason in tests/reference/absent.json"
    stale = [pattern for pattern in known if not fnmatch.filter(found, pattern) or fnmatch.filter(present, pattern)]
    assert not stale, "(partly) present: take it out of tests/reference/absent.json"


PACKAGES = json.loads((ROOT / "tests" / "reference" / "rllib_packages.json").read_text())


def test_packages_offer_the_names_that_rllib_s_offer():
    """Each can be imported from the package that has it in RLlib, or is absent with a reason and says what to use."""
    patterns = [pattern for own in PACKAGES["absent"].values() for pattern in own]
    present, wrong = [], []
    for package, names in PACKAGES["names"].items():
        module = f"jaxrl_stack.{package}".removesuffix(".")
        for name in names:
            path = f"{package}.{name}"
            is_absent = any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    exec(f"from {module} import {name}", {})
            except ImportError as error:
                says_what_to_do = not str(error).startswith(("cannot import", "No module"))
                if not is_absent or not says_what_to_do:
                    wrong.append(f"{path}: {error}")
            else:
                present.append(path)
    assert not wrong, "absent: give the reason in tests/reference/rllib_packages.json, and say what to use"
    all_names = [f"{package}.{name}" for package, names in PACKAGES["names"].items() for name in names]
    stale = [p for p in patterns if not set(fnmatch.filter(all_names, p)) - set(present)]
    assert not stale, "present: take it out of tests/reference/rllib_packages.json"


def test_helpers_of_the_package_utils():
    from jaxrl_stack.core.rl_module import validate_module_id
    from jaxrl_stack.utils import add_mixins, deep_update, flatten_dict, force_list, force_tuple, lstm, unflatten_dict
    from jaxrl_stack.utils.debug import summarize
    from jaxrl_stack.utils.typing import ResultDict

    assert (force_list(), force_list("ab"), force_list((1, 2)), force_tuple({3})) == ([], ["ab"], [1, 2], (3,))
    nested = {"b": {"x": 1, "a": [2, 3]}, "a": 0}
    assert flatten_dict(nested) == {"a": 0, "b/a/0": 2, "b/a/1": 3, "b/x": 1}
    assert unflatten_dict({"a/b": 1, "c": 2}) == {"a": {"b": 1}, "c": 2}
    assert deep_update({"a": {"b": 1}}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    a, b, c = (type(name, (), {}) for name in "abc")
    assert [own for own in add_mixins(c, [a, b]).__mro__ if own in (a, b, c)] == [a, b, c]
    assert "np.ndarray((2, 3), dtype=float64, min=0.0, max=5.0, mean=2.5)" in summarize(
        {"x": np.arange(6.0).reshape(2, 3)}
    )
    assert isinstance({}, ResultDict)
    validate_module_id("p0", error=True)
    with pytest.raises(ValueError, match="'a/b' cannot name a folder"):
        validate_module_id("a/b", error=True)
    # One cell with one unit: gates are sigmoids of input gate, content, forget gate and output gate.
    weights = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    outputs, (cell, last) = lstm(np.ones((1, 2, 1)), weights)
    enter, forget, leave = (1 / (1 + np.exp(-x)) for x in (1.0, 4.0, 4.0))
    first = enter * np.tanh(2.0)
    assert cell[0, 0] == pytest.approx(forget * first + first)
    np.testing.assert_allclose(outputs[0, :, 0], leave * np.tanh([first, cell[0, 0]]))
    assert outputs[0, -1, 0] == last[0, 0]


def test_renamed_classes_are_here_under_their_own_name_only():
    for theirs, ours in KNOWN["renamed"].items():
        assert resolve(ours) is not None, ours
        module, _, name = theirs.rpartition(".")
        with pytest.raises(ImportError):
            exec(f"from jaxrl_stack.{module} import {name}", {})


def test_the_parity_page_has_a_place_for_each_table():
    page = (ROOT / "docs" / "parity.md").read_text()
    assert MARK.findall(page) == list(TABLES)
    shown = with_tables(page)
    assert not MARK.findall(shown)
    assert "| `training()` |" in shown and "| RLModules |" in shown and "**PyTorch's own" in shown
