"""`kernalyse model`: times a whole model, layer by layer; one by name, or of an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli import bench_options as options
from services.cli.options import Server, takes_server

WORK: Final = "What the model does"

VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant", metavar="NAME", help="baseline or fused; given twice, both take turns and are compared.", rich_help_panel=WORK
    ),
]
BatchSizeOption = Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Sequences of one pass.", rich_help_panel=WORK)]
SequenceLengthOption = Annotated[int, typer.Option("--seq-len", metavar="N", min=1, help="Tokens of each.", rich_help_panel=WORK)]
VocabularyOption = Annotated[
    int, typer.Option("--vocab-size", metavar="N", min=1, help="Tokens that the model knows.", rich_help_panel=WORK)
]
BundleOption = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="FOLDER",
        help="Goes to the node with FILE.onnx. By default the weights beside it whose names begin with its own.",
        rich_help_panel=WORK,
    ),
]


DEFAULT_MAX_TIME_S: Final = 6.0
"""Of sampling whole passes; launches take a third of it besides. Somebody waits: on a noisy machine no interval gets as narrow as asked
for, and the limit is what ends the run."""


@takes_server
def model(
    model_name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="gpt-nano, gpt-micro, gpt-mini, gpt-tile-small, …-medium, …-large, bert-tiny, or a file FILE.onnx."
        ),
    ],
    variants: VariantOption = None,
    batch_size: BatchSizeOption = 4,
    sequence_length: SequenceLengthOption = 64,
    vocabulary_size: VocabularyOption = 1024,
    bundle_folder: BundleOption = None,
    target: options.TargetOption = None,
    samples: options.SamplesOption = None,
    min_time: options.MinTimeOption = None,
    max_time: options.MaxTimeOption = None,
    seed: options.SeedOption = 0,
    no_verify: options.NoVerifyOption = False,
    backend: options.BackendOption = options.BackendChoice.AUTO,
    device: options.DeviceOption = None,
    node: options.NodeOption = "",
    json_path: options.JsonOption = None,
    title: options.TitleOption = "",
    *,
    server: Server,
) -> None:
    """Time passes through a model and every launch of them: live progress, then latency, layers and, of two variants, what changed.

    Status 1: the run or a verification failed.
    """
    from services.cli.model_bundle import bundle_of_model
    from services.cli.model_results import follow_and_show_model
    from services.cli.revision import revision_of
    from services.cli.session import analyzer_session
    from services.cli.terminal import console as make_console
    from services.core.model import BackendName, ModelRun, RunSpec
    from services.core.words.measuring_words import MeasuringWords

    measuring = MeasuringWords(
        target=target,
        max_sample_count=samples,
        min_duration_s=min_time,
        max_duration_s=DEFAULT_MAX_TIME_S if max_time is None and min_time is None else max_time,
        seed=seed,
        skip_verification=no_verify,
    )
    bundle = bundle_of_model(model_name, bundle_folder)
    work = ModelRun(
        model_name=model_name if bundle is None else Path(model_name).name,
        variants=tuple(variants or ()),
        batch_size=batch_size,
        sequence_length=sequence_length,
        backend=BackendName[backend.name],
        device_id=device,
        vocabulary_size=vocabulary_size,
        seed=seed,
        measuring=measuring.options(),
    )
    with analyzer_session(server) as client:
        node_id = client.node_id_of(node)
        if bundle is not None:
            work = replace(work, bundle_digest=client.upload_bundle(bundle.data, node_id))
        run = client.start_run(RunSpec(work, title=title, revision=revision_of(Path.cwd())), node_id=node_id)
        is_good = follow_and_show_model(client, run, json_path, make_console(stderr=True))
    if not is_good:
        raise typer.Exit(1)
