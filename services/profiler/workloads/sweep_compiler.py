"""Compiling for a sweep: what does not compile is tried once, and what the compiler says is told once."""

from __future__ import annotations

from pathlib import Path

from services.core.errors import KernalyseError
from services.core.listings import listing_stem, listing_variant
from services.core.model import Dim3, LogLevel, LogLines
from services.profiler.backends.base import Build, CompiledKernel, DeviceSession
from services.profiler.header_bundle import bundle_folder, include_folders_of
from services.profiler.workloads.events import EventSink, store_artifact
from services.profiler.workloads.sweep_plan import PlannedConfiguration


class SweepCompiler:
    """Compiles the kernels of one process's configurations.

    Args:
        options: of the compiler, for all of them.
        folder: of the run; listings become its artifacts.
    """

    def __init__(self, options: tuple[str, ...], session: DeviceSession, sink: EventSink, folder: Path) -> None:
        self._options = options
        self._session = session
        self._sink = sink
        self._folder = folder
        self._refusals: dict[tuple[Build, Dim3], KernalyseError] = {}
        self._told: set[tuple[str, str]] = set()  # logs, listings and their names, each with its kind

    def compile(self, planned: PlannedConfiguration) -> CompiledKernel:
        """Compile one configuration. Raises what the session's compiler raises, and the same again for what was refused before."""
        build = self._build(planned)
        key = (build, planned.block)
        if key in self._refusals:  # a kernel that does not compile costs its compiler's time once
            raise self._refusals[key]
        try:
            compiled = self._session.compile(build, planned.block)
        except KernalyseError as error:
            self._refusals[key] = error
            raise
        if planned.process_index == 0:  # later processes would tell the same
            self._report(planned, compiled)
        return compiled

    def _build(self, planned: PlannedConfiguration) -> Build:
        kernel = planned.kernel
        digest = kernel.bundle_digest
        return Build(
            source=kernel.source,
            function_name=kernel.definition.function,
            macros=planned.macro_values,
            options=self._options,
            include_folders=() if digest is None else include_folders_of(bundle_folder(self._folder, digest)),
        )

    def _report(self, planned: PlannedConfiguration, compiled: CompiledKernel) -> None:
        log = compiled.compiler_log.strip()
        if log and self._is_new("log", log):
            self._sink.write(LogLines(LogLevel.WARNING, "compiler", tuple(log.splitlines())))
        for suffix, data in compiled.listings.items():
            if self._is_new(suffix, data.decode(errors="replace")):
                self._sink.write(store_artifact(self._folder, self._listing_name(planned, suffix), data))

    def _listing_name(self, planned: PlannedConfiguration, suffix: str) -> str:
        """Return a name unique within the run: the plain one for the first listing, then with what made another one necessary."""
        stem = listing_stem(planned.kernel.definition.kernel_name)
        variant = listing_variant(planned.macros)
        names = (stem, f"{stem}.{variant}", f"{stem}.{variant}.{planned.block}", f"{stem}.{planned.configuration_index}")
        candidates = [f"{name.replace('..', '.')}.{suffix}" for name in names]
        return next((name for name in candidates if self._is_new("name", name)), candidates[-1])

    def _is_new(self, kind: str, text: str) -> bool:
        is_new = (kind, text) not in self._told
        self._told.add((kind, text))
        return is_new
