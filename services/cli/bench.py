"""The command `kernalyse bench`, which measures kernels over a sweep of parameters, macros and blocks."""

from __future__ import annotations

from pathlib import Path

import typer

from kernalyse.services.cli import options
from kernalyse.services.cli.options import Server, with_server_options
from kernalyse.services.core.errors import UsageError


@with_server_options
def bench(
    kernels: options.KernelsArgument,
    parameters: options.ParametersOption = None,
    macros: options.MacrosOption = None,
    blocks: options.BlocksOption = None,
    ties: options.TiesOption = None,
    where: options.WhereOption = "",
    arguments: options.ArgumentsOption = None,
    buffers: options.BuffersOption = None,
    flop: options.FlopOption = None,
    bytes_formula: options.BytesOption = None,
    definition: options.DefinitionOption = None,
    include_directories: options.IncludesOption = None,
    compiler_options: options.CompilerOption = None,
    cache: options.CacheOption = options.CacheChoice.DEFAULT,
    timing: options.TimingOption = options.TimingChoice.AUTO,
    stop: options.StopOption = options.StopChoice.CONFIDENCE,
    target: options.TargetOption = None,
    samples: options.SamplesOption = None,
    min_time: options.MinTimeOption = None,
    max_time: options.MaxTimeOption = None,
    warm_up: options.WarmUpOption = None,
    input_choice: options.InputOption = options.InputChoice.UNIFORM,
    seed: options.SeedOption = 0,
    no_verify: options.NoVerifyOption = False,
    wait_idle: options.WaitIdleOption = False,
    refuse_busy: options.RefuseBusyOption = False,
    clocks: options.ClocksOption = options.ClocksChoice.AS_IS,
    counters: options.MeasureCountersOption = False,
    shuffle: options.ShuffleOption = True,
    strategy: options.StrategyOption = options.StrategyChoice.ALL,
    budget: options.BudgetOption = None,
    confirm: options.ConfirmOption = True,
    processes: options.ProcessesOption = 1,
    paired: options.PairedOption = False,
    paired_blocks: options.PairedBlocksOption = None,
    backend: options.BackendOption = options.BackendChoice.AUTO,
    device: options.DeviceOption = None,
    node: options.NodeOption = "",
    on: options.OnOption = "",
    mode: options.ModeOption = options.ModeChoice.COMPARE,
    json_path: options.JsonOption = None,
    title: options.TitleOption = "",
    *,
    server: Server,
) -> None:
    """Measure kernels: live progress, then a table and the best configurations.

    With --on the sweep is measured on several devices at the same time: all of it on each, which are compared with the first, or with
    --mode split each configuration on one of them, and some on all.

    Status 1: the run, a configuration or a verification failed.
    """
    from kernalyse.services.cli.bench_request import KernelOptions, SweepRequest, build_sweep
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.run_output import follow_and_show
    from kernalyse.services.cli.session import analyzer_session, checkout_revision
    from kernalyse.services.core.model import (
        BackendName,
        CacheMode,
        ClockMode,
        InputDistribution,
        RunSpec,
        SearchStrategy,
        StoppingCriterion,
        TimingMethod,
    )
    from kernalyse.services.core.request_syntax import MeasuringArguments, SearchOptions

    request = SweepRequest(
        kernels=KernelOptions(
            names=tuple(kernels),
            buffers=tuple(buffers or ()),
            flop=flop,
            bytes=bytes_formula,
            file=definition,
            include_directories=tuple(include_directories or ()),
        ),
        parameters=tuple(parameters or ()),
        macros=tuple(macros or ()),
        ties=tuple(ties or ()),
        where=where,
        arguments=tuple(arguments or ()),
        blocks=blocks,
        compiler_options=tuple(compiler_options or ()),
        backend=BackendName[backend.name],
        device_id=device,
        measuring=MeasuringArguments(
            cache_mode=CacheMode[cache.name],
            timing_method=TimingMethod[timing.name],
            criterion=StoppingCriterion[stop.name],
            target=target,
            max_sample_count=samples,
            min_duration_s=min_time,
            max_duration_s=max_time,
            warm_up_count=warm_up,
            input_distribution=InputDistribution[input_choice.name],
            seed=seed,
            skip_verification=no_verify,
            waits_for_idle=wait_idle,
            refuses_busy=refuse_busy,
        ),
        search=SearchOptions(
            is_shuffled=shuffle,
            strategy=SearchStrategy[strategy.name],
            budget_s=budget,
            process_count=processes,
            is_paired=paired,
            paired_block_count=paired_blocks,
            with_counters=counters,
            is_confirmed=confirm,
        ),
        clock_mode=ClockMode[clocks.name],
    )
    console = make_console(stderr=True)
    built = build_sweep(request)
    for notice in built.notices:
        console.print(notice, markup=False, highlight=False)
    spec = RunSpec(built.sweep, title=title, revision=checkout_revision(Path.cwd()))
    if on and (node or device):
        raise UsageError("options --on and --node or --device", found="both", expected="one of them", remedy="Leave one out.")
    with analyzer_session(server) as client:
        if on:
            from kernalyse.services.cli.many_devices import left_out_lines, measure_on, targets_of
            from kernalyse.services.cli.split import measure_split

            nodes = client.nodes()
            for line in left_out_lines(nodes, on):
                console.print(line, markup=False, highlight=False)
            targets = targets_of(nodes, on, None if backend is options.BackendChoice.AUTO else BackendName[backend.name])
            measure = measure_on if mode is options.ModeChoice.COMPARE else measure_split
            if not measure(client, targets, spec, built.bundles, json_path, console):
                raise typer.Exit(1)
            return
        node_id = client.node_id_of(node)
        for bundle in built.bundles:
            client.upload_bundle(bundle.data, node_id)
        is_good = follow_and_show(client, client.start_run(spec, node_id=node_id), json_path, console)
    if not is_good:
        raise typer.Exit(1)
