"""Options that several commands share: the analyzer to use, output formats, and those of `kernalyse bench`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kernalyse.services.cli.table_files import check_output_path

PANEL: Final = "Which analyzer"


@dataclass(frozen=True, slots=True)
class Server:
    """The analyzer that the command line names.

    Attributes:
        address: host:port or unix:PATH; None: the analyzer of this machine.
        token: wins over token_file.
        is_insecure_allowed: whether the token may travel to another machine without TLS.
    """

    address: str | None = None
    token: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    client_certificate_file: Path | None = None
    client_key_file: Path | None = None
    is_insecure_allowed: bool = False


ClientCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--client-certificate-file",
        envvar="KERNALYSE_CLIENT_CERTIFICATE_FILE",
        help="PEM certificate to show to services that ask for one (client_ca_file).",
        rich_help_panel=PANEL,
    ),
]
ClientKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--client-key-file", envvar="KERNALYSE_CLIENT_KEY_FILE", help="PEM key of --client-certificate-file.", rich_help_panel=PANEL
    ),
]


def _server(
    server: Annotated[
        str | None, typer.Option("--server", metavar="ADDRESS", help="Analyzer to use: host:port or unix:PATH.", rich_help_panel=PANEL)
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="KERNALYSE_TOKEN",
            help="Token of --server; other users of this machine can see it here.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="File with the token of --server.", rich_help_panel=PANEL)] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="PEM CA certificate of --server, when it serves TLS.", rich_help_panel=PANEL)
    ] = None,
    client_certificate_file: ClientCertificateOption = None,
    client_key_file: ClientKeyOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the token to another machine without TLS.", rich_help_panel=PANEL)
    ] = False,
) -> Server:
    return Server(server, token, token_file, ca_file, client_certificate_file, client_key_file, insecure)


SERVER_PARAMETERS: Final = inspect.signature(_server, eval_str=True).parameters


def with_server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options that name an analyzer after its own; it receives them as one keyword argument, server."""

    @wraps(command)
    def called(**values: Any) -> None:
        server = _server(**{name: values.pop(name) for name in SERVER_PARAMETERS})
        command(**values, server=server)

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "server"]
    vars(called)["__signature__"] = signature.replace(parameters=[*own, *SERVER_PARAMETERS.values()])  # typer reads the signature
    return called


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, the beginning of one, or last.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ReadableFormat(StrEnum):
    """Formats for people, for pull requests and for programs."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


CountersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--counters",
        metavar="REPORT",
        exists=True,
        dir_okay=False,
        help="Report of ncu (CSV) of the same program, for the work of the trace's kernels; may be given several times.",
    ),
]
OpRegistryOption = Annotated[
    Path | None,
    typer.Option(
        "--op-registry",
        metavar="DIRECTORY",
        exists=True,
        file_okay=False,
        help="Directory of an op_registry.py: its get_custom_metrics(cmd, dt_size) computes the cost of operations "
        "in commands.json. It is run.",
    ),
]


# ---------------------------------------------------------------- options of bench
# In the groups in which the help shows them.

SWEEP: Final = "What to sweep"
OWN: Final = "Kernels of your own"
METHOD: Final = "How to measure"
SEARCH: Final = "How much of the sweep, and how often"
PLACE: Final = "Where to run"
OUTPUT: Final = "What to do with the results"

MAX_COUNT: Final = 2**32 - 1  # the fields of the protocol are uint32; the node rejects what is too much for it
MAX_SEED: Final = 2**63 - 1


class BackendChoice(StrEnum):
    """Backends by their names on the command line."""

    AUTO = "auto"
    PYCUDA = "pycuda"
    NVCC = "nvcc"
    OPENCL = "opencl"


class CacheChoice(StrEnum):
    """States of the caches before a launch."""

    DEFAULT = "default"
    COLD = "cold"
    HOT = "hot"
    BOTH = "both"


class TimingChoice(StrEnum):
    """Methods of timing a launch."""

    AUTO = "auto"
    SINGLE = "single"
    BATCHED = "batched"
    GRAPH = "graph"


class StopChoice(StrEnum):
    """Criteria that end the sampling of a configuration."""

    CONFIDENCE = "confidence"
    NOISE = "noise"
    ENTROPY = "entropy"
    SAMPLE_COUNT = "count"


class InputChoice(StrEnum):
    """Distributions of the input data."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    ZEROS = "zeros"


class ClocksChoice(StrEnum):
    """What becomes of the device's clocks."""

    BASE = "base"
    MAX = "max"
    AS_IS = "asis"


class StrategyChoice(StrEnum):
    """Ways through the configurations of a sweep."""

    ALL = "all"
    RANDOM = "random"
    HALVING = "halving"


KernelsArgument = Annotated[
    list[str], typer.Argument(metavar="KERNEL...", help="Catalog names, FILE.cu:KERNEL, or FILE.cu:KERNEL<float,16>.")
]

ParametersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        "-p",
        metavar="NAME=VALUES",
        help="N=128,256 or N=2**7..2**10 or N=32..128:32; block_x, block_y, block_z too. May be repeated.",
        rich_help_panel=SWEEP,
    ),
]
MacrosOption = Annotated[
    list[str] | None,
    typer.Option("--define", "-D", metavar="NAME=VALUES", help="Compile-time constants, like -p. May be repeated.", rich_help_panel=SWEEP),
]
BlocksOption = Annotated[
    str | None, typer.Option("--block", metavar="16x16,32x8", help="Threads per block; several are swept.", rich_help_panel=SWEEP)
]
TiesOption = Annotated[
    list[str] | None,
    typer.Option("--tie", metavar="M=N", help="M always has the value of N. May be repeated.", rich_help_panel=SWEEP),
]
WhereOption = Annotated[
    str,
    typer.Option("--where", metavar="EXPR", help='Leave out what this is false for: "block_x*block_y <= 1024".', rich_help_panel=SWEEP),
]
ArgumentsOption = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="alpha=2.0", help="Value of a scalar argument. May be repeated.", rich_help_panel=SWEEP),
]

BuffersOption = Annotated[
    list[str] | None,
    typer.Option("--buffer", metavar="a=N*K", help="Elements behind a pointer. May be repeated.", rich_help_panel=OWN),
]
FlopOption = Annotated[
    str | None,
    typer.Option("--flop", metavar="EXPR", help="Floating-point operations of a launch; an FMA is two.", rich_help_panel=OWN),
]
BytesOption = Annotated[
    str | None,
    typer.Option("--bytes", metavar="EXPR", help="Bytes a launch must move to and from device memory.", rich_help_panel=OWN),
]
DefinitionOption = Annotated[
    Path | None,
    typer.Option("--definition", metavar="FILE.toml", help="Definitions in the catalog's format.", rich_help_panel=OWN),
]
IncludesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "-I",
        metavar="DIR",
        help="Search headers there too; those a source includes travel with it. May be repeated.",
        rich_help_panel=OWN,
    ),
]
CompilerOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="OPTION", help="For the compiler: --option=--use_fast_math. May be repeated.", rich_help_panel=OWN),
]

CacheOption = Annotated[
    CacheChoice,
    typer.Option("--cache", help="Cold: flushed before each sample. Default: cold on GPUs, hot on CPUs.", rich_help_panel=METHOD),
]
TimingOption = Annotated[
    TimingChoice,
    typer.Option("--timing", help="What a sample is: one launch, several, or a CUDA graph of several.", rich_help_panel=METHOD),
]
StopOption = Annotated[
    StopChoice,
    typer.Option("--stop", help="What ends sampling: the interval of the median, the noise, the entropy, a count.", rich_help_panel=METHOD),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="1%", help="Half-width of the interval, or noise, to reach.", rich_help_panel=METHOD),
]
SamplesOption = Annotated[
    int | None,
    typer.Option("--samples", metavar="N", min=2, max=MAX_COUNT, help="At most this many samples a configuration.", rich_help_panel=METHOD),
]
MinTimeOption = Annotated[
    float | None,
    typer.Option("--min-time", metavar="SECONDS", help="Shortest sampling of a configuration.", rich_help_panel=METHOD),
]
MaxTimeOption = Annotated[
    float | None,
    typer.Option("--max-time", metavar="SECONDS", help="Longest sampling of a configuration.", rich_help_panel=METHOD),
]
WarmUpOption = Annotated[
    int | None,
    typer.Option("--warm-up", metavar="N", min=0, max=MAX_COUNT, help="Launches before the first sample.", rich_help_panel=METHOD),
]
InputOption = Annotated[InputChoice, typer.Option("--input", help="Distribution of the input data.", rich_help_panel=METHOD)]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Of the input data and the order.", rich_help_panel=METHOD)
]
NoVerifyOption = Annotated[bool, typer.Option("--no-verify", help="Do not compare results with the reference.", rich_help_panel=METHOD)]
WaitIdleOption = Annotated[bool, typer.Option("--wait-idle", help="Wait until no other program uses the device.", rich_help_panel=METHOD)]
RefuseBusyOption = Annotated[bool, typer.Option("--refuse-busy", help="Fail when another program uses the device.", rich_help_panel=METHOD)]
ClocksOption = Annotated[
    ClocksChoice,
    typer.Option("--clocks", help="Lock the device's clocks meanwhile: SM at its base, or at its highest.", rich_help_panel=METHOD),
]
MeasureCountersOption = Annotated[
    bool, typer.Option("--counters", help="Once more under ncu, for hardware counters.", rich_help_panel=METHOD)
]

ShuffleOption = Annotated[
    bool,
    typer.Option("--shuffle/--no-shuffle", help="Measure in random order, so that drift follows no axis.", rich_help_panel=SEARCH),
]
StrategyOption = Annotated[
    StrategyChoice,
    typer.Option(
        "--strategy",
        help="Everything; at random until the budget is spent; or short measurements, after each of which the faster half continues.",
        rich_help_panel=SEARCH,
    ),
]
BudgetOption = Annotated[
    float | None, typer.Option("--budget", metavar="SECONDS", help="Of a random or halving search.", rich_help_panel=SEARCH)
]
ConfirmOption = Annotated[
    bool,
    typer.Option(
        "--confirm/--no-confirm",
        help="Compare the best with its runner-up in alternating blocks, in at most a tenth of the time or 3 s.",
        rich_help_panel=SEARCH,
    ),
]
ProcessesOption = Annotated[
    int,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        max=MAX_COUNT,
        help="Measure everything in this many processes, one after the other.",
        rich_help_panel=SEARCH,
    ),
]
PairedOption = Annotated[
    bool, typer.Option("--paired", help="Alternate two kernels block by block, and judge them.", rich_help_panel=SEARCH)
]
PairedBlocksOption = Annotated[
    int | None,
    typer.Option("--paired-blocks", metavar="N", min=1, max=MAX_COUNT, help="Blocks of each; makes it --paired.", rich_help_panel=SEARCH),
]

BackendOption = Annotated[BackendChoice, typer.Option("--backend", help="What runs the kernels.", rich_help_panel=PLACE)]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE_ID", help="As kernalyse devices names it.", rich_help_panel=PLACE)
]
NodeOption = Annotated[str, typer.Option("--node", metavar="NODE", help="Node id, host name or address.", rich_help_panel=PLACE)]

OnOption = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="all|NODE,…|NAME",
        help="On several devices: all, those of some nodes, or those whose name has this in it.",
        rich_help_panel=PLACE,
    ),
]


class ModeChoice(StrEnum):
    """What several devices do with one sweep."""

    COMPARE = "compare"
    SPLIT = "split"


ModeOption = Annotated[
    ModeChoice,
    typer.Option("--mode", help="With --on: the whole sweep on each device, or each configuration on one of them.", rich_help_panel=PLACE),
]

JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        callback=check_output_path,
        help="Write the results there; - for standard output.",
        rich_help_panel=OUTPUT,
    ),
]
TitleOption = Annotated[str, typer.Option("--title", help="What lists call the run.", rich_help_panel=OUTPUT)]
