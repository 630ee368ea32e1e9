"""The few calls of the CUDA driver API that the benchmark needs, through ctypes on the host's own libcuda.so.1.

No wheel, no runtime: the driver compiles the kernels' PTX itself. Every call's status is checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent / "kernels"
BLOCK = 256  # threads
ATTRIBUTE_SMS, ATTRIBUTE_L2_BYTES, ATTRIBUTE_MAJOR, ATTRIBUTE_MINOR = 16, 38, 75, 76
DEFAULT_STREAM = ctypes.c_void_p(None)


class CudaError(Exception):
    """A driver call failed; the message has the call and the driver's name for the error."""


class Cuda:
    """The loaded driver. Raises CudaError when there is none."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise CudaError(f"{library} cannot be loaded: {error}") from error
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        found = getattr(self._library, function, None)
        if found is None:
            raise CudaError(f"this driver has no {function}")
        status = found(*arguments)
        if status != 0:
            raise CudaError(f"{function}: {self._error_name(status)}")

    def device_by_uuid(self, uuid: str) -> Device:
        """The device of a ``GPU-…`` UUID; positions mean nothing between NVML and CUDA."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        for position in range(count.value):
            device = ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(device), position)
            if self._uuid(device) == uuid:
                return Device(self, device)
        raise CudaError(f"CUDA sees no device {uuid}")

    def _uuid(self, device: ctypes.c_int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        name = "cuDeviceGetUuid_v2" if hasattr(self._library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self.call(name, ctypes.byref(raw), device)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(status, ctypes.byref(text)) == 0 and text.value:
            return f"{text.value.decode()} ({status})"
        return f"error {status}"


class Device:
    """One card with its context made current in this thread. Use as a context manager."""

    def __init__(self, cuda: Cuda, device: ctypes.c_int) -> None:
        self._cuda, self._device = cuda, device
        self._modules: dict[str, ctypes.c_void_p] = {}
        self.sms = self._attribute(ATTRIBUTE_SMS)
        self.l2_bytes = self._attribute(ATTRIBUTE_L2_BYTES)
        self.compute_capability = (self._attribute(ATTRIBUTE_MAJOR), self._attribute(ATTRIBUTE_MINOR))

    def __enter__(self) -> Device:
        context = ctypes.c_void_p()
        self._cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._cuda.call("cuCtxSetCurrent", context)
        return self

    def __exit__(self, *_: object) -> None:
        self._cuda.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self._cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def free(self, pointer: ctypes.c_uint64) -> None:
        self._cuda.call("cuMemFree_v2", pointer)

    def read(self, pointer: ctypes.c_uint64, size: int) -> bytes:
        """Copy from the card, once everything queued before is done."""
        buffer = ctypes.create_string_buffer(size)
        self._cuda.call("cuMemcpyDtoH_v2", buffer, pointer, ctypes.c_size_t(size))
        return buffer.raw

    def kernel(self, file: str, name: str) -> ctypes.c_void_p:
        """A function of ``kernels/<file>.ptx``, compiled by the driver on first use."""
        if file not in self._modules:
            text = ctypes.create_string_buffer(
                (KERNELS / f"{file}.ptx").read_bytes()
            )  # adds the final NUL the driver wants
            module = ctypes.c_void_p()
            self._cuda.call("cuModuleLoadDataEx", ctypes.byref(module), text, 0, None, None)
            self._modules[file] = module
        function = ctypes.c_void_p()
        self._cuda.call("cuModuleGetFunction", ctypes.byref(function), self._modules[file], name.encode())
        return function

    def launch(self, kernel: ctypes.c_void_p, *, blocks: int, arguments: Sequence[Any]) -> None:
        """Queue one launch of `blocks` blocks of 256 threads."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self._cuda.call("cuLaunchKernel", kernel, blocks, 1, 1, BLOCK, 1, 1, 0, DEFAULT_STREAM, pointers, None)

    def seconds(self, kernel: ctypes.c_void_p, *, blocks: int, arguments: Sequence[Any], launches: int = 1) -> float:
        """Time on the card, by its own events, of so many launches in a row."""
        start, end = self._event(), self._event()
        try:
            self._cuda.call("cuEventRecord", start, DEFAULT_STREAM)
            for _ in range(launches):
                self.launch(kernel, blocks=blocks, arguments=arguments)
            self._cuda.call("cuEventRecord", end, DEFAULT_STREAM)
            self._cuda.call("cuEventSynchronize", end)
            elapsed_ms = ctypes.c_float()
            self._cuda.call("cuEventElapsedTime", ctypes.byref(elapsed_ms), start, end)
        finally:
            self._cuda.call("cuEventDestroy_v2", start)
            self._cuda.call("cuEventDestroy_v2", end)
        return elapsed_ms.value / 1000

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._cuda.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._cuda.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value
