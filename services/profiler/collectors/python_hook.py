"""The hook that collects inside the Python programs of a profiled command.

A copy of this file lies as sitecustomize.py in a directory on their PYTHONPATH: each of them loads it at its start, runs as it
would without, and begins to collect when it has imported torch (kineto) or triton (proton). Standard library only, and
Python 3.8 on: it is the user's interpreter. What became of it stands in a file of its process, PID.json.
"""

from __future__ import annotations

import atexit
import gzip
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
import traceback
import weakref
from typing import Any

DIRECTORY_VARIABLE = "KERNALYSE_COLLECT_DIRECTORY"
COLLECTOR_VARIABLE = "KERNALYSE_COLLECTOR"
STEPS_VARIABLE = "KERNALYSE_STEP_COUNT"
SEEN_FILE = "python_seen"  # some Python has loaded this
MODULES = {"kineto": "torch", "proton": "triton"}
STARTING = "starting"
EMPTY = "empty"  # state of a process that used the module, and did nothing with it
TERMINATED_STATUS = 128 + signal.SIGTERM


class StatusFile:
    """A status file from which the profiler's worker learns of this process."""

    def __init__(self, directory: str, module_name: str) -> None:
        self._path = os.path.join(directory, f"{os.getpid()}.json")
        self._fields: dict[str, object] = {"python": sys.executable, "module": module_name, "rank": os.environ.get("RANK", "")}

    def report(self, state: str, **fields: object) -> None:
        """Write a state: starting, waiting for the first optimizer step, recording, finishing, stored, empty, failed."""
        self._fields.update(fields, state=state)
        with open(self._path + ".new", "w", encoding="utf-8") as file:
            json.dump(self._fields, file)
        os.replace(self._path + ".new", self._path)


class ModuleRanges:
    """A profiler range around the forward pass of every nn.Module, named by its path in the root module."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._local = threading.local()
        self._names: Any = weakref.WeakKeyDictionary()
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
        module = torch.nn.modules.module
        self._handles = [module.register_module_forward_pre_hook(self._enter)]
        try:
            self._handles.append(module.register_module_forward_hook(self._leave, always_call=True))
        except TypeError:  # until PyTorch 2.0
            self._handles.append(module.register_module_forward_hook(self._leave))

    def end(self) -> None:
        """Remove the ranges from all modules."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: Any, inputs: Any) -> None:
        if self._is_compiling():  # the compiler follows what is called here, and would split its graph at a range
            return
        stack = self._stack()
        name = self._name(module, stack)
        scope = self._torch.autograd.profiler.record_function(f"nn.Module: {name or type(module).__name__}")
        scope.__enter__()
        stack.append((module, name, scope))

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        if self._is_compiling():
            return
        stack = self._stack()
        if any(opened[0] is module for opened in stack):
            while True:  # what an exception has left open ends with what is around it
                open_module, _, scope = stack.pop()
                scope.__exit__(None, None, None)
                if open_module is module:
                    return

    def _stack(self) -> list[tuple[Any, str, Any]]:
        """Return the modules that are being called, outermost first, with their names and ranges."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[Any, str, Any]] = self._local.stack
        return stack

    def _name(self, module: Any, stack: list[tuple[Any, str, Any]]) -> str:
        """Return a name such as blocks.0.attn; empty for the root. A module called from outside its parent has its type's name."""
        if not stack:
            return ""
        parent, parent_name, _ = stack[-1]
        names = self._names.get(parent)
        if names is None or id(module) not in names:
            names = self._names[parent] = {id(child): name for name, child in parent.named_modules()}
            names.setdefault(id(module), "")  # one that is no part is not looked for at each call
        name = names[id(module)] or type(module).__name__
        return f"{parent_name}.{name}" if parent_name else name


class Kineto:
    """The collector torch.profiler, around the rest of the program or around some of its optimizer steps."""

    def __init__(self, directory: str, note: StatusFile) -> None:
        self._path = os.path.join(directory, f"trace-{os.getpid()}.json")
        self._note = note
        steps = os.environ.get(STEPS_VARIABLE)
        self._steps_left = int(steps) if steps else None
        self._profile: Any = None
        self._modules: ModuleRanges | None = None

    def begin(self, torch: Any) -> None:
        """Start recording, or wait for the first optimizer step where a number of steps was requested."""
        self._torch = torch
        self._note.report(STARTING if self._steps_left is None else "waiting for the first optimizer step", version=torch.__version__)
        from torch.optim import optimizer  # type: ignore[import-not-found, unused-ignore]

        optimizer.register_optimizer_step_post_hook(self._on_step)
        if self._steps_left is None:
            self._start()

    def end(self) -> None:
        """Stop and write the trace."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        self._note.report("finishing")
        if self._modules is not None:
            self._modules.end()
        profile.stop()
        events = profile.profiler.kineto_results.events()
        if all(event.name().startswith("ProfilerStep#") for event in events):  # such as of torchrun, which only starts others
            self._note.report(EMPTY)
            return
        profile.export_chrome_trace(self._path)
        with open(self._path, "rb") as source, gzip.open(self._path + ".gz.new", "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        os.replace(self._path + ".gz.new", self._path + ".gz")
        os.unlink(self._path)
        self._note.report("stored", file_name=os.path.basename(self._path) + ".gz")

    def _start(self) -> None:
        profiler = self._torch.profiler
        self._profile = profiler.profile(
            record_shapes=True,
            with_flops=True,
            profile_memory=True,
            with_modules=True,
            schedule=lambda step: profiler.ProfilerAction.RECORD,  # with a schedule, each step has a range of its own
        )
        self._profile.start()
        self._modules = ModuleRanges(self._torch)
        self._note.report("recording")

    def _on_step(self, *_: Any) -> None:
        try:
            if self._profile is not None:
                self._profile.step()
            if self._steps_left is None:
                return
            if self._profile is None and self._steps_left > 0:
                self._start()
                return
            self._steps_left -= 1
            if self._steps_left == 0:
                self.end()
        except Exception:  # the program's own work goes on
            self._steps_left = 0
            self._note.report("failed", error=traceback.format_exc(limit=-3))


class Proton:
    """The collector of Triton, around the rest of the program."""

    def __init__(self, directory: str, note: StatusFile) -> None:
        self._name = os.path.join(directory, f"profile-{os.getpid()}")
        self._note = note
        self._proton: Any = None

    def begin(self, triton: Any) -> None:
        """Start recording."""
        import triton.profiler as proton  # type: ignore[import-not-found, unused-ignore]

        proton.start(self._name, hook="triton")
        self._proton = proton
        self._note.report("recording", version=triton.__version__)

    def end(self) -> None:
        """Stop and write the trace."""
        if self._proton is None:
            return
        proton, self._proton = self._proton, None
        self._note.report("finishing")
        proton.finalize()
        self._note.report("stored", file_name=os.path.basename(self._name) + ".hatchet")


class CollectorImportHook(importlib.abc.MetaPathFinder):
    """An import hook that starts the collector when a module has been imported."""

    def __init__(self, module_name: str, collector: Any, note: StatusFile) -> None:
        self._module_name = module_name
        self._collector = collector
        self._note = note
        self._is_looking = False
        self._has_begun = False
        self._process_id = os.getpid()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Return the spec of the awaited module with a loader that begins to collect after it; None for any other module."""
        if fullname != self._module_name or self._is_looking or self._has_begun:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_begin(module: Any) -> None:
            load(module)
            self._begin(module)

        spec.loader.exec_module = load_and_begin  # type: ignore[method-assign]
        return spec

    def _begin(self, module: Any) -> None:
        # A child of multiprocessing is a data loader's worker as a rule: it ends without a word, and its trace would be of no use.
        multiprocessing = sys.modules.get("multiprocessing.process")
        if self._has_begun or os.getpid() != self._process_id or (multiprocessing and multiprocessing.parent_process() is not None):
            return
        self._has_begun = True
        try:
            self._collector.begin(module)
        except Exception:
            self._note.report("failed", error=traceback.format_exc(limit=-3))
            return
        atexit.register(self._end)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))

    def _end(self) -> None:
        if os.getpid() != self._process_id:  # forked: the trace is its parent's
            return
        try:
            self._collector.end()
        except Exception:
            self._note.report("failed", error=traceback.format_exc(limit=-3))


def watch() -> None:
    """Start the collector in this process, as the variables of its environment say."""
    directory, collector_name = os.environ[DIRECTORY_VARIABLE], os.environ[COLLECTOR_VARIABLE]
    with open(os.path.join(directory, SEEN_FILE), "a", encoding="utf-8"):
        pass
    note = StatusFile(directory, MODULES[collector_name])
    collector = Kineto(directory, note) if collector_name == "kineto" else Proton(directory, note)
    sys.meta_path.insert(0, CollectorImportHook(MODULES[collector_name], collector, note))


def load_hidden_sitecustomize() -> None:
    """Load the sitecustomize that would have been loaded if this file were not in front of it."""
    own_directory = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != own_directory]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if DIRECTORY_VARIABLE in os.environ:
        watch()
    load_hidden_sitecustomize()
