"""How busy the machine is."""

from __future__ import annotations

import sys
import types

from jaxrl_stack.utils import system_load


def test_it_is_read_once_a_second_and_unknown_without_psutil(monkeypatch):
    readings, now = iter([0.0, 25.0, 50.0]), [100.0]
    psutil = types.ModuleType("psutil")
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: next(readings), raising=False)
    memory = types.SimpleNamespace(percent=75)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory, raising=False)
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    monkeypatch.setattr(system_load.time, "monotonic", lambda: now[0])
    load = system_load.SystemLoad()
    read = []
    for now[0] in (100.5, 101.0, 101.5, 102.5):
        read.append(load.read().get("cpu_util_percent"))
    assert read == [None, 25.0, 25.0, 50.0]
    assert load.read()["ram_util_percent"] == 75.0
    monkeypatch.setitem(sys.modules, "psutil", None)
    load, now[0] = system_load.SystemLoad(), 200.0
    assert load.read() == {}
