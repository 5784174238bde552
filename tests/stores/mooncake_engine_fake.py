"""A Mooncake client made up: objects in a dict, memory touched through addresses as the transport does, answers on order."""

import ctypes
import threading
from collections.abc import Sequence

import numpy as np


class FakeEngine:
    """Answers like the real client; `answers` makes the next reads, writes or queries of a name answer with codes."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.answers: dict[tuple[str, str], list[int]] = {}
        self.registered: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.pieces: list[list[tuple[int, int]]] = []  # of each object read: where its pieces went, and their bytes
        self.dead = self.closed = self.misshapen = False
        self.refuse_register = 0
        self.gate: threading.Event | None = None

    def order(self, verb: str, name: str, *codes: int) -> None:
        """Have the next calls answer with these codes for this name; the last one stays."""
        self.answers[verb, name] = list(codes)

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        if self.refuse_register or buffer_ptr in self.registered:
            return self.refuse_register or -600
        self.registered[buffer_ptr] = size
        return 0

    def unregister_buffer(self, buffer_ptr: int) -> int:
        del self.registered[buffer_ptr]
        return 0

    def batch_get_into_multi_buffers(
        self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]]
    ) -> list[int]:
        if self.gate is not None:
            self.gate.wait()
        self.pieces += [list(zip(*each, strict=True)) for each in zip(all_buffer_ptrs, all_sizes, strict=True)]
        return self._each("get", keys, all_buffer_ptrs, all_sizes)

    def batch_put_from_multi_buffers(
        self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]]
    ) -> list[int]:
        return self._each("put", keys, all_buffer_ptrs, all_sizes)

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return self._each("exist", keys)

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        return self._each("remove", keys)

    def get_size(self, key: str) -> int:
        return len(self.objects[key]) if key in self.objects else -704

    def close(self) -> int:
        self.closed = True
        return 0

    def _each(
        self, verb: str, keys: list[str], pointers: Sequence[list[int]] = (), sizes: Sequence[list[int]] = ()
    ) -> list[int]:
        self.calls.append((verb, len(keys)))
        if self.misshapen:
            return [0] * (len(keys) + 1)
        if self.dead:
            return [-900] * len(keys)
        out = []
        for place, name in enumerate(keys):
            ordered = self.answers.get((verb, name))
            if ordered:
                out.append(ordered.pop(0) if len(ordered) > 1 else ordered[0])
                if out[-1] != 0:
                    continue
                out.pop()
            out.append(getattr(self, "_" + verb)(name, pointers and pointers[place], sizes and sizes[place]))
        return out

    def _get(self, name: str, pointers: list[int], sizes: list[int]) -> int:
        data = self.objects.get(name)
        if data is None:
            return -704
        if len(data) != sum(sizes):
            return -600 if len(data) > sum(sizes) else -800
        self._check_registered(pointers, sizes)
        source = np.frombuffer(data, np.uint8).ctypes.data
        for pointer, size in zip(pointers, sizes, strict=True):
            ctypes.memmove(pointer, source, size)
            source += size
        return sum(sizes)

    def _put(self, name: str, pointers: list[int], sizes: list[int]) -> int:
        self._check_registered(pointers, sizes)
        self.objects.setdefault(name, b"".join(map(ctypes.string_at, pointers, sizes)))
        return 0

    def _exist(self, name: str, *_: object) -> int:
        return int(name in self.objects)

    def _remove(self, name: str, *_: object) -> int:
        return -704 if self.objects.pop(name, None) is None else 0

    def _check_registered(self, pointers: list[int], sizes: list[int]) -> None:
        for pointer, size in zip(pointers, sizes, strict=True):
            assert any(at <= pointer and pointer + size <= at + nbytes for at, nbytes in self.registered.items()), (
                "the transport was given memory that is not registered"
            )
