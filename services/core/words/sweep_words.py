"""A sweep as people write it: the options of `kernalyse bench`, the fields of the dashboard's form."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.core.expressions import parse_expression
from services.core.model import ArgumentDefinition, Axis, BackendName, KernelSelection, KernelSweep
from services.core.words.axis_grammar import parse_argument, parse_axes, parse_blocks, parse_tie
from services.core.words.measuring_words import MeasuringWords
from services.core.words.search_words import SearchWords


@dataclass(frozen=True, slots=True)
class SweepWords:
    """Everything but the kernels, as it was written."""

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
    search: SearchWords = field(default_factory=SearchWords)

    def parsed_arguments(self) -> tuple[ArgumentDefinition, ...]:
        """Raises UsageError, InvalidExpressionError."""
        return tuple(map(parse_argument, self.arguments))

    def macro_axes(self) -> tuple[Axis, ...]:
        """Raises UsageError."""
        return parse_axes(self.macros, "-D")

    def sweep(self, kernels: tuple[KernelSelection, ...]) -> KernelSweep:
        """The sweep of these kernels. Raises UsageError, InvalidExpressionError."""
        if self.where:
            parse_expression(self.where)
        return KernelSweep(
            kernels=kernels,
            axes=parse_axes(self.parameters),
            ties=tuple(map(parse_tie, self.ties)),
            where=self.where,
            arguments=self.parsed_arguments(),
            blocks=() if self.blocks is None else parse_blocks(self.blocks),
            backend=self.backend,
            device_id=self.device_id,
            measuring=self.measuring.options(),
            macro_axes=self.macro_axes(),
            compiler_options=self.compiler_options,
            order_seed=self.measuring.seed if self.search.is_shuffled else None,
            strategy=self.search.strategy,
            budget_ns=self.search.budget_ns(),
            process_count=self.search.process_count,
            pairing=self.search.pairing(),
            with_counters=self.search.with_counters,
            skip_confirmation=not self.search.is_confirmed,
        )
