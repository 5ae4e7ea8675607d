"""Loaded by Python at start-up: stands in for packages of SGLang that have no CPU build.

An import succeeds, so that SGLang falls back to its own PyTorch operators; whatever is called from such a package
raises, so that nothing is silently wrong. Probes that ask whether the package is installed are told that it is not.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types

ROOTS = (
    "sgl_kernel", "torchvision", "torchaudio", "torchao", "decord", "vllm.model_executor", "vllm._custom_ops",
)  # fmt: skip


class _Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{cls.__name__}.{name}")


def _missing(full):
    class Missing(metaclass=_Meta):
        def __init__(self, *args, **kwargs):
            raise NotImplementedError(f"{full} has no CPU build")

    Missing.__name__ = full.rsplit(".", 1)[-1]
    return Missing


def _is_parent(name):
    return any(root.startswith(f"{name}.") for root in ROOTS)


def _caller():
    """Return the frame that imports, past the import system's own."""
    frame = sys._getframe(2)
    while frame and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame


class _Module(types.ModuleType):
    __path__ = []  # noqa: RUF012  # the import system's own name for "this is a package"

    def __getattr__(self, name):
        if name.startswith("__") or _is_parent(self.__name__):
            raise AttributeError(name)
        if self.__name__.startswith("vllm."):  # 0.4 imports the names of its own layers from vllm again
            return _caller().f_globals.get(name) or _missing(f"{self.__name__}.{name}")
        value = _missing(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if not _is_parent(fullname) and not any(fullname == root or fullname.startswith(f"{root}.") for root in ROOTS):
            return None
        frame = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            if "util" in frame.f_code.co_filename:  # importlib.util.find_spec: a probe
                return None
            frame = frame.f_back
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())

if "/src/0.4." in os.environ.get("PYTHONPATH", "") and "resource_tracker" not in " ".join(sys.orig_argv):
    import triton.runtime.cache

    # names that newer triton dropped and 0.4 imports
    for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
        if not hasattr(triton.runtime.cache, name):
            setattr(triton.runtime.cache, name, lambda: os.path.expanduser("~/.triton"))  # noqa: PTH111  # a text
