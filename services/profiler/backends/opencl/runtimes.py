"""OpenCL runtimes: Intel's CPU runtime and PoCL from pip, and the drivers that the system has registered.

An OpenCL loader reads one small .icd file per runtime, from one directory. Intel's wheel brings such a file with a
placeholder for a path, so one of our own is written to a private cache directory, beside copies of the system's, and the
loader is pointed there before pyopencl is first imported. PoCL's wheel is found by pyopencl's own loader.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.errors import BackendUnavailableError, InvalidSettingError
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Dim3
from kernalyse.services.profiler.backends.opencl.dialect import Dialect

RUNTIMES: Final = ("intel", "pocl")
POCL: Final = "PoCL"
SYSTEM_VENDORS: Final = Path("/etc/OpenCL/vendors")
INTEL_LIBRARY: Final = "libintelocl.so"
INTEL_PRELOADS: Final = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so")
"""In the wheel these lie where the dynamic linker does not look; loaded globally first, Intel's runtime finds them."""

REMEDY: Final = "Install the extra: pip install 'kernalyse[opencl]'."


@dataclass(frozen=True, slots=True)
class OpenCLDevice:
    """A device, its pyopencl handle, and the language that its compiler supports."""

    device: Device
    handle: Any  # pyopencl.Device
    dialect: Dialect
    has_warps: bool
    runtime: str  # as errors name it


def check_runtime(runtime: str | None) -> None:
    """Raise InvalidSettingError for anything but intel, pocl or nothing."""
    if runtime is not None and runtime not in RUNTIMES:
        raise InvalidSettingError(
            "setting OPENCL", found=runtime, expected=" or ".join(RUNTIMES), remedy="Leave it empty to use every runtime there is."
        )


def load_pyopencl(runtime: str | None, cache_directory: Path | None = None) -> Any:
    """Return the module pyopencl, with the requested runtimes registered. Only the first call of a process registers any.

    Raises BackendUnavailableError when pyopencl is missing or broken.
    """
    check_runtime(runtime)
    if "pyopencl" not in sys.modules:
        # its caches on disk hold binaries and call stubs: they would falsify compile times and fail on a read-only home
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
        _register(runtime, cache_directory or _default_cache_directory())
    try:
        import pyopencl
    except (ImportError, OSError) as error:
        raise BackendUnavailableError("backend OPENCL", found=f"no usable pyopencl ({error})", expected="", remedy=REMEDY) from error
    return pyopencl


def find_devices(runtime: str | None) -> tuple[OpenCLDevice, ...]:
    """Return GPUs first, then Intel's CPU runtime, then PoCL; `runtime` restricts the CPU runtimes to one.

    Raises BackendUnavailableError when pyopencl is missing.
    """
    cl = load_pyopencl(runtime)
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader found no runtime at all
        return ()
    found: dict[str, list[OpenCLDevice]] = {}
    for platform in platforms:
        slug = platform_slug(platform.name)
        if slug in found or (runtime is not None and slug != runtime):
            continue  # a runtime can be registered twice: by its wheel and by the system
        with contextlib.suppress(cl.Error):  # a registered runtime without a device
            found[slug] = [_describe(cl, platform, slug, index, handle) for index, handle in enumerate(platform.get_devices())]
    devices = [device for group in found.values() for device in group]
    return tuple(sorted(devices, key=lambda one: (one.device.kind is not DeviceKind.GPU, _rank(one.device.device_id))))


def platform_slug(platform_name: str) -> str:
    """Return the middle of a device id: "intel" and "pocl" for the two CPU runtimes, else the platform's name in small letters."""
    if platform_name.startswith("Intel(R) OpenCL") and "Graphics" not in platform_name and "FPGA" not in platform_name:
        return "intel"
    if platform_name == "Portable Computing Language":
        return "pocl"
    return re.sub(r"[^a-z0-9]+", "-", platform_name.lower().replace("(r)", "").replace("(tm)", "")).strip("-")


def intel_library() -> Path | None:
    """Return Intel's CPU runtime as its wheel installs it, or None."""
    roots = [Path(sys.prefix) / "lib", *(Path(entry).parent.parent for entry in sys.path if entry.endswith("site-packages"))]
    return next((path for root in roots if (path := root / INTEL_LIBRARY).is_file()), None)


def _rank(device_id: str) -> tuple[int, str]:
    slug = device_id.split(":")[1]
    return (RUNTIMES.index(slug) if slug in RUNTIMES else -1, device_id)


def _default_cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernalyse"


def _register(runtime: str | None, cache_directory: Path) -> None:
    texts: list[str] = []
    library = intel_library() if runtime != "pocl" else None
    if library is not None and _preload(library.parent):
        texts.append(f"{library}\n")
    if runtime is None:
        vendors = Path(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS)
        files = sorted(vendors.glob("*.icd")) if vendors.is_dir() else []
        texts.extend(file.read_text(errors="replace") for file in files)
    os.environ["OCL_ICD_VENDORS"] = str(_write_icd_directory(dict.fromkeys(texts), cache_directory)) + "/"


def _preload(directory: Path) -> bool:
    """Return False when Intel's libraries cannot be loaded here; PoCL then works alone."""
    try:
        for name in INTEL_PRELOADS:
            if (directory / name).is_file():
                ctypes.CDLL(str(directory / name), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _write_icd_directory(texts: Iterable[str], cache_directory: Path) -> Path:
    """Write one .icd file per runtime, in a directory named by their content: several processes may write it at once."""
    contents = list(texts)
    name = "opencl-" + hashlib.sha256("\0".join(contents).encode()).hexdigest()[:16]
    try:
        directory = cache_directory / name
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a read-only home
        directory = Path(tempfile.mkdtemp(prefix="kernalyse-opencl-"))
    for index, text in enumerate(contents):
        path = directory / f"{index}.icd"
        if not path.is_file() or path.read_text() != text:
            partial = directory / f".{index}.{os.getpid()}"
            partial.write_text(text)
            partial.replace(path)
    return directory


def _describe(cl: Any, platform: Any, slug: str, index: int, handle: Any) -> OpenCLDevice:
    kinds = {cl.device_type.CPU: DeviceKind.CPU, cl.device_type.GPU: DeviceKind.GPU}
    kind = next((kind for bit, kind in kinds.items() if handle.type & bit), DeviceKind.ACCELERATOR)
    extensions = set(handle.extensions.split())
    is_intel = slug == "intel"
    device = Device(
        device_id=f"opencl:{slug}:{index}",
        name=handle.name.strip(),
        kind=kind,
        backends=(BackendName.OPENCL,),
        runtime=platform.name,
        driver_version=handle.driver_version,
        compute_unit_count=handle.max_compute_units,
        memory_bytes=handle.global_mem_size,
        l2_cache_bytes=max(handle.global_mem_cache_size, _last_level_cache_bytes() if kind is DeviceKind.CPU else 0) or None,
        max_clock_hz=handle.max_clock_frequency * 1_000_000 or None,  # the runtime reports MHz, or 0
        max_threads_per_block=handle.max_work_group_size,
        max_block=Dim3(*handle.max_work_item_sizes[:3]),
        max_shared_memory_bytes=handle.local_mem_size,
        max_buffer_bytes=handle.max_mem_alloc_size,
    )
    is_cplusplus = is_intel or "cl_ext_cxx_for_opencl" in extensions
    return OpenCLDevice(
        device=device,
        handle=handle,
        dialect=Dialect.CPLUSPLUS if is_cplusplus else Dialect.C,
        has_warps=is_cplusplus and {"cl_intel_required_subgroup_size", "cl_khr_subgroup_shuffle"} <= extensions,
        runtime={"intel": "Intel's CPU runtime", "pocl": POCL}.get(slug, platform.name),
    )


def _last_level_cache_bytes(directory: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the last level, which a flush must reach: Intel's runtime reports a core's second level. 0: unknown."""
    sizes = [path.read_text().strip() for path in directory.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[:-1].isdigit() and size[-1] in units), default=0)
