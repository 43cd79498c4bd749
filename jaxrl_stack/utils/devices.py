"""Devices of a learner, and transfers of state between the host and these devices."""

from __future__ import annotations

import functools
import importlib
import operator
import pickle
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.utils.named_leaves import is_key

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

# jaxlib has no stubs: type checkers take the class, an attribute of its extension module, for a variable.
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]


def use_cpu_devices(n: int) -> None:
    """Splits the host into `n` CPU devices. Call it first (in a notebook, in the first cell), before any JAX operation.

    JAX fixes the number of CPU devices when its backend starts, and importing gymnax starts it. Setting the
    environment variable ``JAX_NUM_CPU_DEVICES`` before Python starts does the same.

    Args:
        n: Number of CPU devices, at least 1; more than the machine has cores only makes sense in tests.

    Raises:
        ValueError: If `n` is below 1.
        RuntimeError: If the backend runs already with fewer devices.
    """
    if n < 1:
        raise ValueError(f"use_cpu_devices(n={n}): n must be at least 1.")
    try:
        if (jax.config.values["jax_num_cpu_devices"] or 0) < n:
            jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:
        if len(jax.devices("cpu")) < n:
            raise RuntimeError(
                f"use_cpu_devices({n}): the JAX backend runs already with {len(jax.devices('cpu'))} CPU devices. Call "
                f"use_cpu_devices({n}) before the first JAX operation (importing gymnax runs some), or start Python "
                f"with JAX_NUM_CPU_DEVICES={n}."
            ) from None


def num_cpu_devices(config: AlgorithmConfig) -> int:
    """Number of CPU devices of a learner without accelerator: ``num_cpus_per_learner`` rounded down, at least 1."""
    cpus = config.num_cpus_per_learner
    return 1 if cpus in ("auto", None) else max(1, int(cpus))


def learner_devices(config: AlgorithmConfig) -> list[Device]:
    """Local devices over which a learner with this config distributes its update.

    ===================================  ===================================================
    setting                              devices
    ===================================  ===================================================
    nothing set                          all local accelerators, else one CPU
    ``num_gpus_per_learner=0`` (set)     CPU
    ``num_gpus_per_learner=g >= 1``      the first g from ``local_gpu_idx``
    ``num_cpus_per_learner=c``           without accelerator: c CPU devices, rounded down to at least 1
    ===================================  ===================================================

    If ``jax.distributed`` joined several processes, each process uses this number of its local devices; see
    `joined_devices`. A learner actor (``num_learners`` above 0) sees only the accelerators that Ray assigned to it, so
    ``local_gpu_idx`` has no effect.

    Raises:
        ValueError: If there are fewer devices than asked for.
        RuntimeError: If CPU devices are asked for after the backend started with fewer.
    """
    gpus, num_cpus = config.num_gpus_per_learner, num_cpu_devices(config)
    gpus_are_set = "num_gpus_per_learner" in config.explicitly_set
    if num_cpus > 1:
        use_cpu_devices(num_cpus)
    accelerators = [d for d in jax.local_devices() if d.platform != "cpu"]
    if gpus_are_set and gpus:
        first = 0 if config.num_learners else config.local_gpu_idx
        chosen = accelerators[first : first + int(np.ceil(gpus))]
        if len(chosen) < int(np.ceil(gpus)):
            raise ValueError(
                f"num_gpus_per_learner={gpus} with local_gpu_idx={first} needs {first + int(np.ceil(gpus))} "
                f"accelerator(s), but JAX sees {len(accelerators)} ({[str(d) for d in accelerators]}). Lower "
                "num_gpus_per_learner or local_gpu_idx, or install jax[cuda]."
            )
        return chosen
    if accelerators and not gpus_are_set:
        return accelerators
    available = jax.local_devices(backend="cpu")
    if len(available) < num_cpus:
        raise ValueError(
            f"num_cpus_per_learner={num_cpus} needs {num_cpus} CPU devices; JAX has {len(available)}. Call "
            f"jaxrl_stack.use_cpu_devices({num_cpus}) before the first JAX operation."
        )
    return available[:num_cpus]


def joined_devices(devices: list[Device]) -> list[Device]:
    """Devices of all processes that ``jax.distributed`` joined, ordered by process: the devices of one ``jax.pmap``
    over all processes.

    Args:
        devices: Local devices that this process uses. Every other process uses the devices at the same indices of its
            ``jax.local_devices()``.

    Returns:
        The devices of all processes; `devices` unchanged if no other process was joined.

    Raises:
        ValueError: If another process has fewer devices.
    """
    platform = devices[0].platform
    num_processes = num_joined_processes(platform)
    if num_processes == 1:
        return devices
    places = [jax.local_devices(backend=platform).index(device) for device in devices]
    devices_of = [jax.local_devices(process_index=process, backend=platform) for process in range(num_processes)]
    fewest = min(map(len, devices_of))
    if fewest <= max(places):
        raise ValueError(
            f"All joined processes need the same number of devices: this one has {len(devices)}, another one only "
            f"{fewest} {platform} device(s). Set learners(num_gpus_per_learner={fewest}), or "
            f"num_cpus_per_learner={fewest} without accelerators."
        )
    return [of_process[place] for of_process in devices_of for place in places]


def num_joined_processes(platform: str | None = None) -> int:
    """Number of processes that ``jax.distributed`` joined; 1 without ``jax.distributed``. Does not start
    JAX's backend.
    """
    return jax.process_count(platform) if jax.distributed.is_initialized() else 1


def device_numbers(devices: list[Device]) -> range:
    """Indices of this process's devices in the result of `joined_devices`, the list of all processes' devices."""
    platform = devices[0].platform
    process = jax.process_index(platform) if num_joined_processes(platform) > 1 else 0
    return range(process * len(devices), (process + 1) * len(devices))


def _forget(function: Callable[..., Any]) -> None:
    """Removes the compiled programs of a function from the cache of ``jax.pmap``. JAX has no public function for such
    a removal.
    """
    cache = getattr(importlib.import_module("jax._src.pmap"), "_cached_shard_map", None)
    evict = getattr(cache, "evict_function", None)
    if evict is not None:
        evict(function)


def map_over_devices(
    function: Callable[..., Any],
    devices: list[Device],
    *,
    axis_name: str | None,
    in_axes: tuple[int | None, ...],
    out_axes: tuple[int | None, ...],
    donate_argnums: tuple[int, ...],
) -> Callable[..., Any]:
    """Maps a function over devices with ``jax.pmap``. If `axis_name` is None, wraps the function for a single device
    instead, without ``jax.pmap``.

    The mapped function has a method ``trace(*args)``, which returns the program for these arguments as a
    `jax.stages.Traced`. It can be lowered for platforms that this machine does not have. Compiled programs are freed
    with the last reference to the mapped function.

    If ``jax.distributed`` joined several processes, the axis covers the devices of all processes (see
    `joined_devices`). Every process must call the program, with arguments of the same shapes. It passes and receives
    the slices ``[D, ...]`` of its D local devices, and a copy of replicated values. ``jax.lax.axis_index`` counts the
    devices of all processes.

    Without an axis name the function is for eager runs: under ``jax.disable_jit``, `jax.pmap` would compile each
    operation at every call, while plain operations are compiled once each. An eager run has one device; the leading
    axis of mapped arguments is removed, and added to mapped results again.

    Args:
        function: Reduces over `axis_name`, which is None in an eager run.
        devices: The devices of this process.
        axis_name: Name of the device axis, or None for an eager run on the only device.
        in_axes: 0 for arguments ``[D, ...]``, None for replicated ones.
        out_axes: The same for the results, which are a tuple.
        donate_argnums: Indices of arguments whose buffers the results may reuse.
    """
    if axis_name is None:
        return _on_the_only_device(function, in_axes, out_axes)
    # jax.pmap keeps a function, and every program that was compiled of it, as long as the process lives: the results in
    # its cache refer to the key that they are cached under. A method would keep its algorithm, with all of its data.
    # What lives that long here is a call of something that it does not keep.
    call: Any = functools.partial(operator.call, weakref.proxy(function))
    # Its name only: a callable object's attributes would be kept, too.
    call.__name__ = getattr(function, "__name__", type(function).__name__)
    mapped = functools.partial(
        jax.pmap,
        call,
        axis_name=axis_name,
        in_axes=in_axes,
        out_axes=out_axes,
        devices=joined_devices(devices),
        donate_argnums=donate_argnums,
    )
    program: Any = mapped()
    program.calls = function

    def trace(*args: Any) -> jax.stages.Traced:
        # What jax.pmap makes lowers for its own devices' platform alone; and jax.jit keeps functions, too.
        return jax.jit(mapped(), donate_argnums=donate_argnums).trace(*args)

    program.trace = trace
    weakref.finalize(program, _forget, call).atexit = False
    return program


def _on_the_only_device(
    function: Callable[..., Any], in_axes: tuple[int | None, ...], out_axes: tuple[int | None, ...]
) -> Callable[..., Any]:
    """Wraps a function for a single device, as a replacement for ``jax.pmap``.

    The wrapper removes the leading device axis of mapped arguments, calls the function, and adds the axis to mapped
    results.
    """

    def changed(change: Callable[[Any], Any], values: Sequence[Any], axes: tuple[int | None, ...]) -> tuple[Any, ...]:
        pairs = zip(values, axes, strict=True)
        return tuple(jax.tree.map(change, value) if axis == 0 else value for value, axis in pairs)

    def eager(*args: Any) -> tuple[Any, ...]:
        results = function(*changed(operator.itemgetter(0), args, in_axes))
        return changed(operator.itemgetter(None), results, out_axes)

    return eager


def place_replicated(tree: Any, devices: list[Device]) -> Any:
    """Copies a pytree to every device of this process, with the sharding that ``jax.pmap(..., axis_name="devices")``
    gives to results with ``out_axes=None``.

    Always copies, so that no two leaves share a buffer and donating the result does no harm.
    """
    sharding = replicated_sharding(devices)
    return jax.tree.map(lambda x: jax.device_put(_of_bits(np.array, x), sharding), tree)


def replicated_sharding(devices: list[Device]) -> jax.sharding.NamedSharding:
    """Sharding with a full copy on every device, equal to the sharding that
    ``jax.pmap(..., axis_name="devices")`` gives to results with ``out_axes=None``.
    """
    return _sharding(devices)


def place_sharded(tree: Any, devices: list[Device]) -> Any:
    """Places a pytree with leaves ``[D, ...]`` on D devices, one slice each, with the sharding that ``pmap`` expects.

    Args:
        tree: Pytree with slices for all `joined_devices`; each process places the slices of its devices. Donating the
            result does not affect `tree`.
        devices: The devices of this process.
    """
    sharding, own = _sharding(devices, "devices"), device_numbers(devices)
    is_joined = num_joined_processes(devices[0].platform) > 1

    def own_slices(x: Any) -> Any:
        if isinstance(x, jax.Array):  # It may be there already, and would be placed as it is.
            x = _of_bits(np.array, x)
        return x[own.start : own.stop] if is_joined else x

    # One call for all leaves takes half of the time.
    return jax.device_put(jax.tree.map(own_slices, tree), sharding)


def place_shards(shards: Sequence[Any], devices: list[Device]) -> Any:
    """Joins D pytrees with leaves ``[1, ...]`` to one pytree with leaves ``[D, ...]``, sharded over D devices.

    Moves pytree i to device i. The result is sharded like the result of `place_sharded`.

    The function computes nothing: stacking the pytrees would compile a program for every shape.
    """
    sharding = _sharding(devices, "devices")

    def joined(*slices: Any) -> jax.Array:
        placed = [jax.device_put(x, device) for x, device in zip(slices, devices, strict=True)]
        return jax.make_array_from_single_device_arrays((len(devices), *placed[0].shape[1:]), sharding, placed)

    return jax.tree.map(joined, *shards)


def _sharding(devices: list[Device], *axes: str) -> jax.sharding.NamedSharding:
    mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


def _of_bits(function: Callable[[Any], Any], x: Any) -> Any:
    """Applies a function to an array `x` and returns the result.

    If `x` contains PRNG keys, applies the function to their raw uint32 data, and converts the result back to PRNG keys.
    """
    if is_key(x):
        return jax.random.wrap_key_data(function(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return function(x)


def host_view(tree: Any) -> Any:
    """Replaces each JAX array of a pytree by a JAX array on a single device, without a copy.

    The device is the first of the old array's local devices. If the old array is replicated over devices, the new array
    has all data. If the old array is sharded, the new array has one shard.
    """
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, tree)


def copy_on_one_device(tree: Any, sharding: jax.sharding.NamedSharding) -> Any:
    """Copies a pytree to a single device.

    The leaves must be replicated: each source device has a full copy. If the pytree has no leaves, returns it
    unchanged.

    If the leaves are on that device already, one program copies them, in a third of the time of a transfer.

    Args:
        tree: Leaves are JAX arrays, no PRNG keys.
        sharding: Place, one device.
    """
    shards = host_view(tree)
    places = {shard.sharding for shard in jax.tree.leaves(shards)}
    if not places:
        return tree
    if all(place.device_set == sharding.device_set for place in places):
        return _copying(sharding)(shards)
    return jax.device_put(shards, sharding, may_alias=False)


@functools.cache
def _copying(sharding: jax.sharding.NamedSharding) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=sharding)


def own_shards(tree: Any) -> Any:
    """Copies this process's slices of leaves ``[D, ...]``, which are sharded over D devices, to host arrays."""

    def fetch(x: jax.Array) -> Any:
        shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    return jax.tree.map(functools.partial(_of_bits, fetch), tree)


def all_shards(tree: Any) -> Any:
    """Gathers leaves ``[D, ...]`` of a pytree to host arrays.

    The leaves are sharded over the D devices of all processes that ``jax.distributed`` joined, or of this process if
    none are joined.

    All joined processes must call this function together; each process receives the slices of all processes.
    """

    def gather(x: jax.Array) -> Any:
        own = own_shards(x)
        return own if num_joined_processes() == 1 else np.concatenate(gathered(own))

    return jax.tree.map(functools.partial(_of_bits, gather), tree)


# ---------------------------------------------------------------------------------------------------- joined processes


_LARGEST_MESSAGE = 1 << 22
"""Most bytes that each process sends at a time; a device then holds as many bytes from every process."""


def gathered(own: np.ndarray) -> np.ndarray:
    """Gathers an array of each of the P joined JAX processes to one array ``[P, ...]``. All processes must call it.

    Args:
        own: NumPy array of this process, with the same shape and dtype in all processes.
    """
    num_processes = num_joined_processes()
    if num_processes == 1:
        return own[None]
    sent = np.ascontiguousarray(own).reshape(-1).view(np.uint8)
    # Few sizes, for each is a program of its own.
    size = min(_LARGEST_MESSAGE, 1 << max(8, (sent.size - 1).bit_length()))
    received = np.empty((num_processes, sent.size), np.uint8)
    for start in range(0, sent.size, size):
        part = sent[start : start + size]
        (everyone,) = _gathering()(np.pad(part, (0, size - part.size))[None])
        received[:, start : start + size] = np.asarray(host_view(everyone))[:, : part.size]
    return received.view(own.dtype).reshape(num_processes, *own.shape)


def gathered_values(own: Any) -> list[Any]:
    """Gathers a value, any picklable object, from each joined JAX process.

    Returns the list of these values, in the order of the processes. All processes must call this function.

    Args:
        own: Picklable value of this process; its size may differ between processes.
    """
    if num_joined_processes() == 1:
        return [own]
    sent = np.frombuffer(pickle.dumps(own), np.uint8)
    sizes = gathered(np.array([sent.size], np.uint32))[:, 0].tolist()
    everyone = gathered(np.pad(sent, (0, max(sizes) - sent.size)))
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes, strict=True)]


@functools.cache
def _gathering() -> Callable[..., Any]:
    """Returns a program that gathers one uint8 array ``[1, n]`` from each of P processes.

    The program returns the gathered array ``[P, n]`` in a tuple of length 1.
    """
    return map_over_devices(
        lambda own: (jax.lax.all_gather(own, "processes"),),
        jax.local_devices()[:1],
        axis_name="processes",
        in_axes=(0,),
        out_axes=(None,),
        donate_argnums=(),
    )


def check_processes_agree(settings: Mapping[str, Any]) -> None:
    """Raises a ValueError in all joined JAX processes if their settings differ. All processes must call it.

    Args:
        settings: ``{name: value}``. Numbers, texts, and lists and dicts of these are compared; other values only by
            their types.

    Raises:
        ValueError: In all processes, if a setting differs: they would run different programs, and wait for each other
            forever.
    """
    if num_joined_processes() == 1:
        return
    sums = np.array([zlib.crc32(f"{name}={_as_text(settings[name])}".encode()) for name in sorted(settings)], np.uint32)
    totals = gathered(np.array([len(sums), zlib.crc32(sums.tobytes())], np.uint32))
    if (totals == totals[0]).all():
        return
    differing = ["their names"]
    if (totals[:, 0] == totals[0, 0]).all():
        everyone = gathered(sums)
        differing = [name for name, own in zip(sorted(settings), everyone.T, strict=True) if (own != own[0]).any()]
    raise ValueError(
        f"The joined processes have different settings ({', '.join(differing)}), but all of them run one program. "
        "Build the algorithm from the same config in all processes."
    )


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{key!r}: {_as_text(item)}' for key, item in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_text, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_as_text, value)))}}}"
    is_plain = value is None or isinstance(value, bool | int | float | str | np.generic)
    return repr(value) if is_plain else f"{type(value).__module__}.{type(value).__qualname__}"


def of_first_process(function: Callable[[], str]) -> str:
    """Calls ``function()`` only in process 0 of the joined JAX processes. The other processes wait and receive the
    result of this call.

    Args:
        function: Returns a text of at most 4,000 bytes.

    Raises:
        Exception: In process 0, the error of `function`.
        RuntimeError: In the other processes, with the message of this error.
    """
    if num_joined_processes() == 1:
        return function()
    text, error = "", None
    if jax.process_index() == 0:
        try:
            text = function()
        except BaseException as raised:  # raised below, when the others know of it
            text, error = f"{type(raised).__name__}: {raised}", raised
    message = np.zeros(4096, np.uint8)
    encoded = np.frombuffer(text.encode()[:4000], np.uint8)
    message[0], message[1 : 1 + encoded.size] = error is not None, encoded
    has_failed, *sent = gathered(message)[0]
    if error is not None:
        raise error
    received = bytes(sent).rstrip(b"\0").decode(errors="replace")
    if has_failed:
        raise RuntimeError(
            f"The first of the joined processes raised an error; correct the cause of that error: {received}"
        )
    return received
