"""The variables of the service's environment that the processes of a run get.

Whatever a run executes was sent by somebody. Names are all there is to judge by, so what looks like a secret is withheld; a run that
needs such a variable carries its own value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from services.core.model import CommandProfile, RunSpec

OWN_PREFIX: Final = "KERNALYSE_"
SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_KEY$|(^|_)JWT$|^SSH_AUTH_SOCK$", re.IGNORECASE)
NO_SECRETS: Final = frozenset({"TOKENIZERS_PARALLELISM", "NV_TPS_LAUNCH_TOKEN"})
"""Names like a secret's that programs need: a setting of Hugging Face's tokenizers, and what Nsight Compute leaves in what it starts."""

WORKER_NAMES: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV",
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SOURCE_DATE_EPOCH",
})  # fmt: skip
WORKER_PREFIXES: Final = (
    "LC_", "LD_", "XDG_", "PYTHON", "CONDA_", "MALLOC_",
    "CUDA", "NV", "NSYS_", "QUADD_", "CUPTI_", "NCCL_",
    "OCL_", "OPENCL", "CL_", "POCL_", "PYOPENCL_", "INTEL_", "TBB_", "SYCL_", "ONEAPI_", "ROCR_", "HIP_", "HSA_",
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ORT_",
)  # fmt: skip
"""What loaders, Python, compilers, CUDA (NVCC_, NVIDIA_, NVTX_ and profilers around a service among it), OpenCL runtimes and thread
pools read. One too few, and a toolkit that only a variable leads to is not found; one too many, and kernels see what is none of theirs."""


def is_secret(name: str) -> bool:
    """Return whether a variable's name looks like that of a secret."""
    return SECRET_NAME.search(name) is not None and name not in NO_SECRETS


def worker_environment(service: Mapping[str, str]) -> dict[str, str]:
    """Return what the worker of kernels, models and references needs of the service's environment."""
    return {
        name: value for name, value in service.items() if (name in WORKER_NAMES or name.startswith(WORKER_PREFIXES)) and not is_secret(name)
    }


def withheld_names(service: Mapping[str, str]) -> list[str]:
    """Return the variables of the service that a command does not get, in alphabetical order."""
    return sorted(name for name in service if name.startswith(OWN_PREFIX) or is_secret(name))


def inherited_environment(spec: RunSpec, service: Mapping[str, str]) -> dict[str, str]:
    """Return what a run's processes get of the service's environment, without what the run itself sets."""
    if not isinstance(spec.work, CommandProfile):
        return worker_environment(service)
    withheld = set(withheld_names(service))
    return {name: value for name, value in service.items() if name not in withheld}


def withheld_notice(spec: RunSpec, service: Mapping[str, str]) -> str | None:
    """Return the line of the run's log that names what its command did not get; None when it got everything."""
    if not isinstance(spec.work, CommandProfile):
        return None
    given: Collection[str] = {variable.name for variable in spec.work.environment}
    missing = [name for name in withheld_names(service) if name not in given]
    if not missing:
        return None
    return (
        f"Withheld from the command, for their names look like secrets or settings of this node: {', '.join(missing)}. "
        "What it needs of them, give with the run: kernalyse profile --env NAME."
    )
