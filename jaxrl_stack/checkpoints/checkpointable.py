"""Saving and loading: `Checkpointable`, the base of all classes with a state.

A checkpoint has a folder per component, in RLlib's layout: metadata, the class with its constructor's arguments, and
the state as JSON, with arrays in a separate file. It contains data and no code; `from_checkpoint` documents the classes
that loading imports.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from jaxrl_stack.checkpoints.files import Component, Stored, opened, write
from jaxrl_stack.checkpoints.module_states import MODULES, share_attributes
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE, CLASS_AND_CTOR_ARGS_FILE, METADATA_FILE, STATE_FILE
from jaxrl_stack.checkpoints.needed_code import NeededCode
from jaxrl_stack.checkpoints.plain_data import DAMAGES, KIND, Decoder, Encoder, code_named_by
from jaxrl_stack.utils.class_paths import ClassLoader, path_of
from jaxrl_stack.utils.notices import notice_once

Parts: TypeAlias = str | Collection[str] | None
"""Names of parts of a state: one, several, or None for all (in ``not_components``: for none)."""

_WEIGHTS = (MODULES, "optimizer")


class Checkpointable:
    """Base class of objects that can be saved and loaded, separately or as components of other objects.

    Subclasses override `get_state`, `set_state` and `get_ctor_args_and_kwargs`, and, if they have Checkpointable parts,
    `get_checkpointable_components`. The state of an owner contains the state of a part under the part's name, and a
    folder of that name stores it.
    """

    STATE_FILE_NAME = STATE_FILE
    METADATA_FILE_NAME = METADATA_FILE
    CLASS_AND_CTOR_ARGS_FILE_NAME = CLASS_AND_CTOR_ARGS_FILE

    _state_is_weights = False
    # Whether the owner's arguments say all of an object that has no state.
    _is_optional_in_checkpoints = False

    # ------------------------------------------------------------------------------------------- what classes override

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the state of this object: nested dicts with string keys, of arrays and plain values.

        Args:
            components: Names of the parts to include; None for all.
            not_components: Names of the parts to leave out.
            **kwargs: See the class.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not override get_state(). Define it, and set_state(state), to save this "
            "object."
        )

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the state of this object from a result of `get_state`. Parts that are missing in `state` do not
        change.

        Raises:
            ValueError: If `state` does not fit this object.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not override set_state(state). Define it to load what get_state() returns."
        )

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns constructor arguments ``(args, kwargs)`` that create an equal object."""
        return (), {}

    def get_metadata(self) -> dict[str, Any]:
        """Additional entries for the metadata file of this object's checkpoint, as JSON."""
        return {}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns the parts of this object that a checkpoint stores in separate folders, as a list of ``(name, part)``.

        Each part is a Checkpointable, or a `Component` description if the part may be in another process.
        """
        return []

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Self:
        """Creates an object with the constructor arguments in a checkpoint; the object's state is not restored yet."""
        del state
        return cls(*args, **kwargs)

    # --------------------------------------------------------------------------------------------------------- saving

    def describe_component(self) -> Component:
        """Description of this object for a checkpoint: class, constructor arguments, metadata and components, without
        the states.
        """
        encoder = Encoder(leave_out=True)
        args, kwargs = self.get_ctor_args_and_kwargs()
        ctor = {"args": encoder.encode(list(args)), "kwargs": {k: encoder.encode(v, k) for k, v in kwargs.items()}}
        if encoder.arrays:
            raise TypeError(
                f"{type(self).__name__}.get_ctor_args_and_kwargs() returned arrays at the paths "
                f"{sorted(encoder.arrays)}, but checkpoints cannot store arrays in constructor arguments. Return the "
                "arrays from get_state(), or as nested lists."
            )
        try:
            class_path = path_of(type(self))
        except ValueError:
            class_path = None
            encoder.left_out["class"] = f"{type(self).__name__}, which is defined inside a function"
        component = Component(
            class_path=class_path,
            ctor=ctor,
            left_out=encoder.left_out,
            metadata=self.get_metadata(),
            state_file=self.STATE_FILE_NAME,
            metadata_file=self.METADATA_FILE_NAME,
            is_optional=self._is_optional_in_checkpoints,
            parts={
                name: part if isinstance(part, Component) else part.describe_component()
                for name, part in self.get_checkpointable_components()
            },
        )
        _complete(component)
        return component

    def save_to_path(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        state: dict[str, Any] | None = None,
        filesystem: Any = None,
        use_msgpack: bool = False,
        blocking: bool = True,
    ) -> str:
        """Writes a checkpoint of this object and all its parts, atomically.

        Args:
            path: Folder to write; an existing checkpoint is replaced. Paths such as ``"s3://..."`` need pyarrow. None
                creates a temporary folder.
            state: State to write instead of `get_state()`.
            filesystem: The ``pyarrow.fs.FileSystem`` of `path`.
            use_msgpack: No effect: states are JSON and arrays.
            blocking: True returns when the checkpoint is written. False returns as soon as the state is copied, and a
                thread writes it: `checkpoints.wait_for_saves()` waits for it, and later calls report errors.

        Returns:
            The path.

        Raises:
            ValueError: If `path` exists and is not a checkpoint.
        """
        if use_msgpack:
            notice_once("save_to_path(use_msgpack=True) has no effect: checkpoints are JSON and arrays.")
        component = self.describe_component()
        left_out = component.all_left_out()
        if left_out:
            items = ", ".join(f"{where} ({what})" for where, what in left_out.items())
            notice_once(
                f"The checkpoint of this {type(self).__name__} does not contain {items}, which is code. Pass it as a "
                "keyword argument of from_checkpoint(), or, for an Algorithm, in config=."
            )
        written = self.get_state() if state is None else state

        def save() -> str:
            folder = path
            if folder is None:
                folder = os.path.join(tempfile.mkdtemp(prefix=f"{type(self).__name__}_"), "checkpoint")
            return write(folder, component, written, filesystem=filesystem, blocking=blocking)

        return self._in_one_process(save)

    def _in_one_process(self, save: Callable[[], str]) -> str:
        """Calls the function `save`, which writes a checkpoint, and returns the function's result.

        If several processes share an object, the object's class overrides this method, so that only one of the
        processes calls `save`.
        """
        return save()

    # -------------------------------------------------------------------------------------------------------- loading

    def restore_from_path(
        self, path: str | os.PathLike[str], *, component: str | None = None, filesystem: Any = None
    ) -> None:
        """Restores the state of this object from a checkpoint.

        Args:
            path: Folder that `save_to_path` of a similar object wrote. With `component`, the folder of that component
                or of an object that contains it.
            component: Path of the only part to restore, such as ``"learner_group/learner/rl_module/default_policy"``.
                Modules keep attributes that the checkpoint lacks, and ignore additional ones; a notice names them.
            filesystem: See `save_to_path`.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it is damaged or does not fit. Nothing has changed then.
        """
        with opened(path, filesystem) as stored:
            names = [] if component is None else self._component_names(component)
            part = _found(stored, names)
            state = read_state(part, is_weights=self._state_is_weights or bool({*names} & {*_WEIGHTS}))
            for name in reversed(names):
                state = {name: state}
            self._take_over(state, part, names)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        """Returns the state to which the object will be reset if loading a checkpoint fails.

        It leaves out parts that are restored last and atomically, which would only copy large data.
        """
        return self.get_state()

    def _take_over(self, state: dict[str, Any], stored: Stored, names: Sequence[str] = ()) -> None:
        before = self._state_to_go_back_to()
        if MODULES in names:
            share_attributes(state, before, names, stored.path)
        try:
            self._set_stored_state(state, before, stored.path)
        except BaseException:
            self.set_state(before)
            raise

    def _set_stored_state(self, state: dict[str, Any], present: dict[str, Any], path: Any) -> None:
        owner = f"this {type(self).__name__}"
        with fitting(f"The checkpoint at {path}", owner, hint=lambda: self._hint_for_misfit(state)):
            _check_alike(state, present, (), self._state_is_weights)
            self.set_state(state)

    def _hint_for_misfit(self, state: Mapping[str, Any]) -> str:
        """Returns the reason why the state in a checkpoint does not fit this object, as the end of an error message.

        The text is a space and one or more sentences; ``""`` if no reason is known.
        """
        del state
        return ""

    def _component_names(self, component: str) -> list[str]:
        names = component.split("/")
        parts = dict(self.get_checkpointable_components())
        for depth, name in enumerate(names):
            if name not in parts:
                where = "/".join(names[:depth]) or type(self).__name__
                raise ValueError(
                    f"restore_from_path(component={component!r}): {where} has no component {name!r}; it has "
                    f"{list(parts)}."
                )
            part = parts[name]
            parts = part.parts if isinstance(part, Component) else dict(part.get_checkpointable_components())
        return names

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike[str], filesystem: Any = None, *, allow: Iterable[Any] = (), **ctor_overrides: Any
    ) -> Self:
        """Creates an object from a checkpoint, with its class and state.

        Classes of this package are imported. Checkpoints bring no code, so other classes are used only in these cases:
        the running script (``__main__``) defines them with the expected base class; they were registered
        (`checkpoints.register_class`); they are in `allow`; another argument of this call names them; or they are the
        class of this method.

        Args:
            path: Folder that `save_to_path` wrote, separately or as a part of another checkpoint.
            filesystem: See `save_to_path`.
            allow: Your classes and functions that the checkpoint names.
            **ctor_overrides: Arguments of the constructor that replace the stored ones.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it is damaged, of another class, or needs code that is not allowed or was left out.
        """
        with opened(path, filesystem) as stored:
            named = code_named_by(ctor_overrides)
            loader = ClassLoader(allow, own=cls, named=named, written_here=stored.code_written_here())
            what = f"The checkpoint at {stored.path}"
            component = stored.component()
            needed = NeededCode(loader)
            needed.add_component(component, cls, without=ctor_overrides)
            needed.check(stored.path, f"{cls.__name__}.from_checkpoint")
            actual = cls._stored_class(component, loader, what)
            decoder = Decoder(loader, what=what)
            args = [decoder.decode(item) for item in component.ctor["args"]]
            stored_kwargs = component.ctor["kwargs"].items()
            kwargs = decoder.decode_items({name: node for name, node in stored_kwargs if name not in ctor_overrides})
            state = read_state(stored, is_weights=actual._state_is_weights)
            with fitting(what, actual.__name__):
                new = actual._build_from_checkpoint(args, kwargs | ctor_overrides, state)
            new._set_stored_state(state, new.get_state(), stored.path)
            return new

    @classmethod
    def _stored_class(cls, component: Component, loader: ClassLoader, what: str) -> type[Self]:
        if component.class_path is None:
            return cls
        found = loader.load(component.class_path, what=what, expected=(f"{cls.__module__}:{cls.__qualname__}",))
        if not isinstance(found, type) or not issubclass(found, cls):
            name = getattr(found, "__name__", component.class_path)
            raise ValueError(f"{what} was saved by {name}, not by {cls.__name__}. Call {name}.from_checkpoint(path).")
        return found


def _complete(component: Component) -> None:
    """Fills gaps in the stored configs of a component and of its parts (the components inside it).

    A gap is a setting that was not stored because its value is not data, such as a lambda. A gap in the config of
    `component` is filled from a part, and a gap in the config of a part from `component`, if the other config contains
    the complete value.
    """
    _, *inside = component.with_parts()
    _take_settings(component, inside)
    for part in inside:
        _take_settings(part, [component])


def _take_settings(component: Component, others: Sequence[Component]) -> None:
    """Fills gaps in the stored config of `component` with values from the stored configs of `others`.

    A gap is a setting that was not stored because its value is not data. Each gap is filled from the first component in
    `others` whose stored config contains the complete value. If no config in `others` contains the value, the setting
    remains missing.
    """
    for where in list(component.left_out):
        argument, _, name = where.partition("/")
        settings = _settings(component, argument)
        for other in others:
            lacks = any(f"{gap}/".startswith(f"{where}/") for gap in other.left_out)
            if name in settings and name in (known := _settings(other, argument)) and not lacks:
                settings[name] = known[name]
                del component.left_out[where]
                break


def _settings(component: Component, argument: str) -> dict[str, Any]:
    """Returns the stored settings of the config that a component's constructor takes as the keyword argument
    `argument`.

    The result is ``{setting: JSON}``; {} if this argument is not a config.
    """
    node = component.ctor["kwargs"].get(argument)
    return node["value"] if isinstance(node, dict) and node.get(KIND) == "plain" else {}


@contextlib.contextmanager
def fitting(what: str, owner: str, hint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Context manager for loading a checkpoint: converts errors in its block to a ValueError that names the checkpoint
    and the object that loads it.

    Args:
        what: Description of the checkpoint.
        owner: Name of the object that loads it.
        hint: Returns further reasons why a state does not fit, after a space.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what} does not fit {owner}: {error}{hint()}") from error
    except DAMAGES as error:
        raise ValueError(
            f"{what} does not fit {owner}, or is damaged: {error!r}. Load it with the config and the release that "
            "saved it."
        ) from error


def get_checkpoint_info(checkpoint: Any, filesystem: Any = None) -> dict[str, Any]:
    """Reads facts about a checkpoint (type, version, ids of modules, metadata) without loading it.

    Args:
        checkpoint: Folder of the checkpoint, or Ray's ``Checkpoint``.
        filesystem: See `Checkpointable.save_to_path`.

    Returns:
        ``type`` ("Algorithm", or the class of a part), ``checkpoint_version``, ``checkpoint_dir``, ``state_file``,
        ``module_ids`` and ``policy_ids`` (ids of an Algorithm's modules, else None), and the metadata.
    """
    with opened(checkpoint, filesystem) as stored:
        is_algorithm = stored.metadata_file == ALGORITHM_METADATA_FILE
        modules = {*_found(stored, ("learner_group", "learner", "rl_module")).parts} if is_algorithm else None
        class_path = stored.component().class_path or ""
        return {
            **stored.metadata,
            "type": "Algorithm" if is_algorithm else class_path.rpartition(":")[2],
            "checkpoint_dir": str(stored.path),
            "module_ids": modules,
            "policy_ids": modules,
        }


def selected(names: Collection[str], components: Parts, not_components: Parts, owner: str) -> list[str]:
    """Selects names of components for `get_state` and similar methods: the names in `components` without
    `not_components`, in the order of `names`.

    Args:
        names: All names.
        components: Names to select, or None for all.
        not_components: Names to leave out.
        owner: Name of their owner, for the message.

    Raises:
        ValueError: For an unknown name.
    """
    wanted, unwanted = as_names(components), as_names(not_components)
    unknown = sorted({*(wanted or ()), *(unwanted or ())} - {*names})
    if unknown:
        raise ValueError(f"Unknown components {unknown} of {owner}. Its components are {list(names)}: use only these.")
    return [n for n in names if (wanted is None or n in wanted) and not (unwanted and n in unwanted)]


def as_names(components: Parts) -> set[str] | None:
    """Converts the argument `components` (a name, several names, or None) to a set of names; None remains None."""
    return {components} if isinstance(components, str) else None if components is None else set(components)


def _found(stored: Stored, names: Sequence[str]) -> Stored:
    """Returns the component at the path `names` in a checkpoint, such as ``("learner_group", "learner")``.

    If `names` is empty, returns the whole checkpoint. Also returns the whole checkpoint if the first name is missing
    and the checkpoint is not an algorithm's, because such a checkpoint contains only this component.
    """
    if not names or (names[0] not in stored and stored.metadata_file != ALGORITHM_METADATA_FILE):
        return stored
    for name in names:
        stored = stored.part(name)
    return stored


def read_state(stored: Stored, *, is_weights: bool) -> dict[str, Any]:
    """Reads the state of a stored component with all its parts from a checkpoint.

    Args:
        stored: The component in a checkpoint.
        is_weights: Whether it is a single module or optimizer.

    Raises:
        ValueError: If it is damaged, or weights are NaN.
    """
    state = stored.state(ClassLoader())
    _check_not_nan(state, str(stored.path), is_weights)
    return state


def _check_alike(state: Any, present: Any, names: tuple[str, ...], is_weights: bool) -> None:
    """Raises a ValueError if a stored state does not fit the object that loads it.

    A state does not fit if it lacks weights of the object, or contains weights with another dtype. Whole modules may be
    missing. `set_state` checks additional weights and shapes.
    """
    where = "/".join(names)
    if isinstance(state, Mapping) and isinstance(present, Mapping):
        for name, item in present.items():
            if name in state:
                _check_alike(state[name], item, (*names, str(name)), is_weights or name in _WEIGHTS)
            elif is_weights and not isinstance(item, Mapping):
                raise ValueError(
                    f"the checkpoint lacks the value {'/'.join((*names, str(name)))}. Use the config that saved the "
                    "checkpoint."
                )
    elif is_weights and getattr(state, "dtype", None) != getattr(present, "dtype", None):
        kinds = [str(getattr(value, "dtype", type(value).__name__)) for value in (state, present)]
        raise ValueError(
            f"the value {where} has the type {kinds[0]} in the checkpoint, but {kinds[1]} in the object that loads the "
            "checkpoint. Use the config that saved the checkpoint."
        )


def _check_not_nan(tree: Any, path: str, is_weights: bool, names: tuple[str, ...] = ()) -> None:
    if isinstance(tree, Mapping):
        for name, item in tree.items():
            _check_not_nan(item, path, is_weights or name in _WEIGHTS, (*names, str(name)))
    elif is_weights and isinstance(tree, np.ndarray) and np.isnan(tree).any():
        raise ValueError(
            f"The checkpoint at {path} contains NaN in {'/'.join(names)}: training had diverged, or the file was "
            f"changed. Use an earlier checkpoint."
        )
