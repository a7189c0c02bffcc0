"""From the words of `kernalyse bench` to a sweep that any node can run."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.cli.axis_grammar import parse_argument, parse_axes, parse_blocks, parse_tie
from services.cli.kernel_words import KernelWords
from services.cli.measuring_words import MAX_SECONDS, MeasuringWords
from services.cli.usage import UsageError
from services.core.expressions import parse_expression
from services.core.model import BackendName, KernelSweep, Pairing, SearchStrategy
from services.profiler.header_bundle import HeaderBundle


@dataclass(frozen=True, slots=True)
class SearchWords:
    """How much of the sweep is measured, and how often. None: not given."""

    is_shuffled: bool = True
    strategy: SearchStrategy = SearchStrategy.ALL
    budget_s: float | None = None
    process_count: int = 1
    is_paired: bool = False
    paired_block_count: int | None = None
    with_counters: bool = False

    def budget_ns(self) -> int | None:
        """Raises UsageError."""
        if self.budget_s is None:
            return None
        if not 0 < self.budget_s < MAX_SECONDS:
            raise UsageError(
                f"option --budget {self.budget_s:g}", found=f"{self.budget_s:g}", expected="seconds, more than 0", remedy="Say --budget 60."
            )
        if self.strategy is SearchStrategy.ALL:
            raise UsageError(
                f"option --budget {self.budget_s:g}",
                found="the strategy all, which measures everything however long it takes",
                expected="a search that can leave something out",
                remedy="Add --strategy halving or --strategy random, or leave the budget out.",
            )
        return max(1, int(self.budget_s * 1e9))

    def pairing(self) -> Pairing | None:
        if self.paired_block_count is not None:
            return Pairing(self.paired_block_count)
        return Pairing() if self.is_paired else None


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options as they were written."""

    kernels: KernelWords
    parameters: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    where: str = ""
    arguments: tuple[str, ...] = ()
    blocks: str | None = None
    compiler_options: tuple[str, ...] = ()
    backend: BackendName = BackendName.AUTO
    device_id: str | None = None
    measuring: MeasuringWords = field(default_factory=MeasuringWords)
    search: SearchWords = SearchWords()


@dataclass(frozen=True, slots=True)
class BuiltSweep:
    """notices: what has to be said aloud. bundles: headers to upload before the run."""

    sweep: KernelSweep
    notices: tuple[str, ...] = ()
    bundles: tuple[HeaderBundle, ...] = ()


def build_sweep(request: SweepRequest) -> BuiltSweep:
    """The sweep, and what goes with it.

    Raises:
        UsageError: an option cannot be read, or a file is not there.
        InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
    """
    if request.where:
        parse_expression(request.where)
    arguments = tuple(map(parse_argument, request.arguments))
    macro_axes = parse_axes(request.macros, "-D")
    selected = request.kernels.select(arguments, tuple(axis.name for axis in macro_axes))
    search = request.search
    sweep = KernelSweep(
        kernels=selected.selections,
        axes=parse_axes(request.parameters),
        ties=tuple(map(parse_tie, request.ties)),
        where=request.where,
        arguments=arguments,
        blocks=() if request.blocks is None else parse_blocks(request.blocks),
        backend=request.backend,
        device_id=request.device_id,
        measuring=request.measuring.options(),
        macro_axes=macro_axes,
        compiler_options=request.compiler_options,
        order_seed=request.measuring.seed if search.is_shuffled else None,
        strategy=search.strategy,
        budget_ns=search.budget_ns(),
        process_count=search.process_count,
        pairing=search.pairing(),
        with_counters=search.with_counters,
    )
    return BuiltSweep(sweep, (*selected.notices, *request.measuring.notices()), selected.bundles)
