"""A CUDA device that is none: tensors that say they are there, and kernels that run on the CPU.

Inside `pretended_cuda` every tensor made for a CUDA device is a `PretendedTensor`: its device says
cuda, so code takes the paths that it takes there, and its values are real, so control flow that
depends on them goes the way it would go. What CUDA refuses is refused (a CPU tensor beside one of
the device, `numpy()`), and what makes the host wait for the device is counted, with the line that
asked for it. Speed, memory, rounding and the kernels themselves remain a matter for tests/gpu.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specserve import noise
from specserve.backends.cuda import graphs as cuda_graphs
from specserve.backends.cuda import noise as captured_noise
from tests.device.tape import Tape
from tests.device.tensors import PretendedTensor, as_on, values_of

DEVICE = torch.device("cuda", 1)  # not the first one: whoever names no device gets noticed
FREE_BYTES = 32 << 20  # what `torch.cuda.mem_get_info` claims to be free
CAPABILITY = (9, 0)

_ROOT = Path(__file__).parents[2]
_OWN = tuple(str(_ROOT / package) + "/" for package in ("specserve", "target_node", "draft_node"))
_ATEN = torch.ops.aten
_INDEXING = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_}
_COPIES = {_ATEN._to_copy, _ATEN.copy_}
# Operations whose result has a shape that only the device knows.
_SHAPES = {_ATEN.nonzero, _ATEN.masked_select, _ATEN._unique2, _ATEN.unique_dim, _ATEN.bincount}
# A value without dimensions may be on the CPU here too, besides pointwise operations.
_TAKE_NUMBERS = {_ATEN.masked_fill, _ATEN.masked_fill_, _ATEN.fill_, _ATEN.index_put_}


def _fused_gru_cell(
    inputs: torch.Tensor, hiddens: torch.Tensor, state: torch.Tensor, *_biases: None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new state; the workspace is for a backward pass."""
    (ir, iz, i), (hr, hz, h) = inputs.chunk(3, 1), hiddens.chunk(3, 1)
    new = (i + (ir + hr).sigmoid() * h).tanh()
    return new + (iz + hz).sigmoid() * (state - new), state.new_empty(0)


_KERNELS = {_ATEN._thnn_fused_gru_cell: _fused_gru_cell}  # those that the CPU has not


class Mixed(RuntimeError):
    """An operation met tensors of different devices, as torch words it."""


class PretendedCuda(TorchDispatchMode):
    """Follows tensors of the device through every operation of the thread that entered it."""

    # The slot of torch's own fake tensors: with it taken no device is looked for or started.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()  # by kind and line of the project
        self.num_operations = 0  # on the device
        self.mixes: list[str] = []  # also those that were caught somewhere

    def __enter__(self) -> "PretendedCuda":
        # torch.tensor(..., device="cuda") then copies where the mode can see it.
        self._lifts_only = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifts_only)
        super().__exit__(*error)

    def num_waits(self, kind: str | None = None) -> int:
        return sum(count for (each, _), count in self.waits.items() if kind in (None, each))

    def forget(self) -> None:
        """Count from here on."""
        self.waits.clear()
        self.num_operations = 0

    # --- indexing ----------------------------------------------------------------------------

    def get(self, tensor: PretendedTensor, key: Any) -> torch.Tensor:
        return PretendedTensor(tensor.values_[self._index(tensor, key)], tensor.device)

    def set(self, tensor: PretendedTensor, key: Any, value: Any) -> None:
        index = self._index(tensor, key)
        if isinstance(value, torch.Tensor):
            if value.device != tensor.device and (value.device.type != "cpu" or value.dim()):
                self._refuse("index_put_", [tensor, value])
            value = values_of(value)
        tensor.values_[index] = value

    def _index(self, tensor: PretendedTensor, key: Any) -> Any:
        """`key` for the values: integers of the CPU are copied to the device first."""
        self.num_operations += 1
        parts = key if isinstance(key, tuple) else (key,)
        found = []
        for part in parts:
            if isinstance(part, torch.Tensor):
                if part.device != tensor.device and part.device.type != "cpu":
                    self._refuse("index", [tensor, part])
                self._count_index(part)
                part = values_of(part)
            elif isinstance(part, list):
                self._wait("upload")
            found.append(part)
        return tuple(found) if isinstance(key, tuple) else found[0]

    # --- everything else ---------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in _flat((*args, *kwargs.values())) if isinstance(x, torch.Tensor)]
        ours = [x for x in tensors if isinstance(x, PretendedTensor)]
        wanted = kwargs.get("device")
        if not ours and (wanted is None or wanted.type == "cpu"):
            return func(*args, **kwargs)
        packet = func.overloadpacket
        device = _result_device(wanted, ours)
        self.num_operations += device.type != "cpu" or packet in _COPIES
        self._check(func, args, tensors, ours)
        self._check_generator(kwargs.get("generator"), device)
        self._count(func, args, tensors, device)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if kwargs.pop("pin_memory", False):
            kwargs["pin_memory"] = False
        kernel = _KERNELS.get(packet, func)
        found = kernel(*values_of(args), **{name: values_of(x) for name, x in kwargs.items()})
        return as_on(device, found, ours)

    def _check(self, func, args, tensors: list, ours: list) -> None:
        """Raise `Mixed` where CUDA would."""
        packet = func.overloadpacket
        if packet in _COPIES or not ours:
            return
        strangers = [x for x in tensors if x.device != ours[0].device]
        if packet in _INDEXING and isinstance(args[0], PretendedTensor):
            indices = [x for x in args[1] if x is not None]
            strangers = [x for x in strangers if not any(x is index for index in indices)]
        if torch.Tag.pointwise in func.tags or packet in _TAKE_NUMBERS:
            strangers = [x for x in strangers if x.device.type != "cpu" or x.dim() > 0]
        if not strangers:
            return
        self._refuse(str(packet), tensors)

    def _check_generator(self, generator: torch.Generator | None, device: torch.device) -> None:
        """A device draws with generators of its own."""
        if generator is not None and generator.device.type != device.type:
            mix = f"Expected a {device.type!r} generator, not {generator.device} at {_line()}"
            self.mixes.append(mix)
            raise Mixed(mix)

    def _refuse(self, name: str, tensors: list) -> NoReturn:
        devices = ", ".join(f"{x.device}{list(x.shape)}" for x in tensors)
        mix = f"Expected all tensors to be on the same device: {name}({devices}) at {_line()}"
        self.mixes.append(mix)
        raise Mixed(mix)

    def _count(self, func, args, tensors: list, device: torch.device) -> None:
        """Count what makes the host wait until the device has done all it was asked for."""
        packet = func.overloadpacket
        if packet in _COPIES:
            # Memory that is not pinned is copied before the call returns, non_blocking or not.
            source = tensors[-1]
            target = tensors[0].device if packet is _ATEN.copy_ else device
            if source.device != target and source.numel():
                self._wait("read" if target.type == "cpu" else "upload")
        elif packet is _ATEN._local_scalar_dense or packet is _ATEN.equal:
            self._wait("read")
        elif packet in _SHAPES or (packet is _ATEN.repeat_interleave and func is not _SIZED):
            self._wait("shape")
        elif packet in _INDEXING:
            for index in (x for x in args[1] if x is not None):
                self._count_index(index)

    def _count_index(self, index: torch.Tensor) -> None:
        if index.device.type == "cpu":
            self._wait("upload")
        if index.dtype in (torch.bool, torch.uint8):
            self._wait("shape")

    def _wait(self, kind: str) -> None:
        self.waits[kind, _line()] += 1


_SIZED = _ATEN.repeat_interleave.self_int


def _result_device(wanted: torch.device | None, ours: list) -> torch.device:
    device = wanted if wanted is not None else ours[0].device
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


class _WithIndex(TorchFunctionMode):
    """`x.to("cuda")` means the current device, which torch would ask a driver for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        is_named = (
            func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], str | torch.device)
        )
        if is_named and str(args[1]) == "cuda":
            args = (args[0], torch.device("cuda", torch.cuda.current_device()), *args[2:])
        return func(*args, **(kwargs or {}))


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _line() -> str:
    """The innermost line of the project that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OWN):
            path = Path(code.co_filename).relative_to(_ROOT)
            return f"{path}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return "a test"


@contextmanager
def _without_inference_mode() -> Iterator[None]:
    """Wrappers and inference tensors do not go together; `no_grad` computes the same."""
    guards: list[torch.no_grad] = []

    def enter(_: object) -> None:
        guards.append(torch.no_grad())
        guards[-1].__enter__()

    def leave(_: object, *error: Any) -> None:
        guards.pop().__exit__(*error)

    with (
        mock.patch.object(torch.inference_mode, "__enter__", enter),
        mock.patch.object(torch.inference_mode, "__exit__", leave),
    ):
        yield


def _word_bits(
    seeds: torch.Tensor,
    sample_words: torch.Tensor,
    positions: torch.Tensor,
    purpose_words: torch.Tensor,
    blocks: torch.Tensor,
) -> torch.Tensor:
    """As torch's dispatcher would choose, which a mode comes before."""
    on_device = seeds.device.type == "cuda"
    bits = captured_noise.philox_floats if on_device else torch.ops.specserve.philox_floats
    return bits(blocks, positions, sample_words, purpose_words, seeds)


@contextmanager
def pretended_cuda() -> Iterator[PretendedCuda]:
    """A machine with CUDA devices while inside. Fails at the end if devices were ever mixed."""
    caches: list[Callable[[], None]] = [
        noise._constants.cache_clear,
        captured_noise._graphs.cache_clear,
    ]
    current = [DEVICE]
    cuda = {
        "set_device": lambda device: current.__setitem__(0, torch.device(device)),
        "current_device": lambda: current[0].index,
        "synchronize": lambda device=None: None,  # what was asked for is done
        "mem_get_info": lambda device=None: (FREE_BYTES, FREE_BYTES),
        "get_device_capability": lambda device=None: CAPABILITY,
        "Event": mock.Mock,  # what was asked for is done
    }
    with ExitStack() as stack:
        for name, function in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        for clear in caches:
            clear()
            stack.callback(clear)
        stack.enter_context(_without_inference_mode())
        stack.enter_context(_WithIndex())
        mode = stack.enter_context(PretendedCuda())
        stack.enter_context(mock.patch.object(noise, "_word_bits", _word_bits))
        stack.enter_context(mock.patch.object(cuda_graphs, "GraphCapture", partial(Tape, mode)))
        stack.enter_context(mock.patch.object(cuda_graphs, "_process", cuda_graphs._Process()))
        yield mode
    assert not mode.mixes, "\n".join(mode.mixes)
