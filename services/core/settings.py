"""Settings of the three services. Flags override environment variables, these the TOML file, and this the defaults.

The file is `kernalyse.toml` in the user's configuration directory (XDG_CONFIG_HOME), or the one that KERNALYSE_CONFIG
names; each service reads its own table: [profiler], [analyzer], [ui]. Environment variables are KERNALYSE_PROFILER_X,
KERNALYSE_ANALYZER_X, KERNALYSE_UI_X, with X the name of the setting in capitals.
"""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import platformdirs
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from kernalyse.discovery import Announcement, config_directory, config_file, find_service, read_announcement, runtime_directory, start_ticks
from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.services.core.identity import read_or_create_token
from kernalyse.services.core.rpc import ServerSecurity
from kernalyse.tls import ca_problem, pair_problem

GIBIBYTE = 1024**3

logger = logging.getLogger(__name__)


def data_directory() -> Path:
    """Return the directory for the user's data."""
    return platformdirs.user_data_path("kernalyse")


def _shared_token_file() -> Path:
    return config_directory() / "token"


class ServiceSettings(BaseSettings):
    """Settings that every service has."""

    section: ClassVar[str]

    token_file: Path = Field(
        default_factory=_shared_token_file, description="File with the access token, mode 0600; made at the first start."
    )
    certificate_file: Path | None = Field(None, description="PEM certificate chain to serve TLS with.")
    key_file: Path | None = Field(None, description="PEM key of the certificate.")
    announcement_file: Path | None = Field(
        None, description="File that tells other programs where this service is; unset: one in XDG_RUNTIME_DIR."
    )
    metrics_address: str = Field(
        "", description="host:port to serve figures for Prometheus on, at /metrics, to holders of a token with scope read; empty: none."
    )
    insecure: bool = Field(False, description="Listen beyond loopback without TLS, or connect so; token and results travel in the clear.")
    log_format: Literal["text", "json"] = Field(
        "text", description="Lines for people, or json: an object a line, with ids of run, node and trace."
    )
    otel_endpoint: str = Field(
        "",
        pattern="^(https?://.+)?$",
        description="URL of a collector that takes traces by OTLP over gRPC, as http://host:4317; empty: none.",
    )
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="DEBUG, INFO, WARNING or ERROR.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order of precedence: flags, environment, TOML file."""
        return init_settings, env_settings, _SectionSource(settings_cls, cls.section)

    @classmethod
    def load(cls, **flags: Any) -> Self:
        """Load the settings from all sources; flags that are None count as not given.

        Raises:
            InvalidSettingError: names the setting, what was found and where it may come from.
        """
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"]) or cls.section
            raise InvalidSettingError(
                f"setting {cls.section}.{name}",
                found=repr(first.get("input")),
                expected=first["msg"],
                remedy=f"Look at the flag, at {cls.model_config.get('env_prefix')}{name.upper()} and at {config_file()}.",
            ) from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidSettingError(
                f"settings file {config_file()}", found=str(error), expected="TOML", remedy="Correct that line."
            ) from error

    def announcement_path(self) -> Path:
        """Return the path of the file that advertises the running service."""
        return self.announcement_file or runtime_directory() / f"{self.section}.json"

    def token(self) -> str:
        """Return the access token, which is created if there is none."""
        return read_or_create_token(self.token_file)

    def certificate_pair(self, certificate_name: str = "certificate_file", key_name: str = "key_file") -> tuple[bytes | None, bytes | None]:
        """Return the PEM certificate and key that two settings name, or None for both.

        Raises:
            InvalidSettingError: a file cannot be read, or a server or client could not use the two together.
        """
        pair = self.contents(certificate_name), self.contents(key_name)
        if (found := pair_problem(*pair)) is not None:
            raise InvalidSettingError(
                f"settings {self.section}.{certificate_name} and {self.section}.{key_name}",
                found=f"{found} ({getattr(self, certificate_name)}, {getattr(self, key_name)})",
                expected="both or neither: a PEM certificate and its PEM key, without password",
                remedy="Correct the paths, or what is in the files.",
            )
        return pair

    @property
    def certificate_files(self) -> tuple[Path | None, Path | None]:
        """Return the paths of certificate and key; None: no TLS."""
        return self.certificate_file, self.key_file

    def contents(self, name: str) -> bytes | None:
        """Return what is in the file that a setting names, if it names one. Raises InvalidSettingError."""
        path: Path | None = getattr(self, name)
        try:
            return None if path is None else path.read_bytes()
        except OSError as error:
            raise InvalidSettingError(
                f"setting {self.section}.{name}", found=f"{path}: {error.strerror}", expected="a PEM file", remedy="Correct the path."
            ) from error


class RenewedCertificate:
    """Certificate and key of a service, read anew when their files have changed. On any thread.

    Args:
        settings: name the files.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._seen = self._read()

    def __call__(self) -> tuple[bytes, bytes] | None:
        """Return the pair if it is another than before; None: it is the same, or cannot be used, as one of which half is written."""
        try:
            pair = self._read()
            if pair == self._seen:
                return None
            certificate, key = self._settings.certificate_pair()
        except InvalidSettingError as error:
            logger.warning("The certificate is not renewed: %s", error.message)
            return None
        self._seen = certificate, key
        if certificate is None or key is None:
            return None
        logger.info("Serving with a renewed certificate.")
        return certificate, key

    def _read(self) -> tuple[bytes | None, bytes | None]:
        return self._settings.contents("certificate_file"), self._settings.contents("key_file")


class _SectionSource(TomlConfigSettingsSource):
    """One table of the TOML file."""

    def __init__(self, settings_cls: type[BaseSettings], section: str) -> None:
        self._section = section
        super().__init__(settings_cls, config_file())

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        table: dict[str, Any] = super()._read_file(file_path).get(self._section, {})
        return table


class GrpcSettings(ServiceSettings):
    """Settings that both gRPC services have."""

    data_directory: Path
    tokens_file: Path | None = Field(
        None, description="File of the tokens that `kernalyse tokens` issues; unset: SERVICE-tokens.json in the configuration directory."
    )
    audit_file: Path | None = Field(
        None, description="File with a JSON line for each decision about access; unset: audit.jsonl in the data directory."
    )
    client_ca_file: Path | None = Field(None, description="PEM CA that signs client certificates; set, every client must show one.")

    def security(self) -> ServerSecurity:
        """Return what the service is served with. Raises InvalidSettingError for files that cannot be used, alone or together."""
        certificate, key = self.certificate_pair()
        client_ca = self.contents("client_ca_file")
        if client_ca is not None and certificate is None:
            raise InvalidSettingError(
                f"setting {self.section}.client_ca_file",
                found="no certificate_file beside it",
                expected="certificate_file and key_file too: without TLS no client can show a certificate",
                remedy="Set them, or leave client_ca_file out.",
            )
        if client_ca is not None and (found := ca_problem(client_ca)) is not None:
            raise InvalidSettingError(
                f"setting {self.section}.client_ca_file",
                found=f"{found} ({self.client_ca_file})",
                expected="the PEM certificate of the CA that signs client certificates",
                remedy="Correct the path, or what is in the file.",
            )
        return ServerSecurity(
            *(self.token(), certificate, key, client_ca, self.insecure, self.tokens_path(), self.audit_path()),
            renewed_pair=RenewedCertificate(self),
        )

    def tokens_path(self) -> Path:
        """Return the path of the file of issued tokens."""
        return self.tokens_file or config_directory() / f"{self.section}-tokens.json"

    def audit_path(self) -> Path:
        """Return the path of the record of decisions."""
        return self.audit_file or self.data_directory / "audit.jsonl"


class ProfilerSettings(GrpcSettings):
    """Settings of the profiler service."""

    section: ClassVar[str] = "profiler"
    model_config = SettingsConfigDict(env_prefix="KERNALYSE_PROFILER_", extra="forbid")

    address: str = Field("127.0.0.1:7001", description="host:port or unix:PATH to listen on; port 0 takes a free one.")
    data_directory: Path = Field(
        default_factory=lambda: data_directory() / "profiler", description="Directory of journal, bundles and artifacts."
    )
    node_name: str = Field("", max_length=100, description="Name of this node among others; empty: the host's.")
    join: str = Field("", description="Address of an analyzer to join, which then collects from this node; empty: none.")
    join_token_file: Path | None = Field(
        None, description="File with a join token (`kernalyse nodes join-token`); needed once, the node then has a token of its own."
    )
    join_scope: Literal["measure", "source", "command"] = Field(
        "command", description="What the analyzer that is joined may have done here at most, whoever asks for it."
    )
    tunnel: bool = Field(False, description="Join by one outgoing stream that carries the analyzer's calls: nobody has to reach this node.")
    advertised_address: str = Field(
        "", description="host:port at which the analyzer reaches this node; empty: the address on the way to it."
    )
    join_client_certificate_file: Path | None = Field(
        None, description="PEM certificate for an analyzer that requires one (its client_ca_file)."
    )
    join_client_key_file: Path | None = Field(None, description="PEM key of that certificate.")
    opencl_runtime: str | None = Field(
        None, pattern="^(intel|pocl)$", description="OpenCL runtime for the CPU: intel or pocl; unset: intel where it runs."
    )
    observe_only: bool = Field(
        False, description="Never run anything here: tell of the devices and their telemetry, and refuse every run with the remedy."
    )
    replay: Path | None = Field(
        None,
        description="Recording to replay at the start, with runs that another node has measured; nothing is measured here (observe_only).",
    )
    pod_resources_socket: Path = Field(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="Socket of kubelet's pod-resources API, asked for the pods that hold GPUs where it is there.",
    )
    allow_inline_source: bool = Field(True, description="Accept kernel sources that travel with a request.")
    allow_commands: bool = Field(True, description="Accept commands to profile.")
    allowed_commands: tuple[str, ...] = Field(
        (), description="Patterns (*, ?, [a-z]) of complete command lines; when set, only commands that match one are profiled."
    )
    sandbox: Literal["others", "all", "off"] = Field(
        "others",
        description="Whose runs see only what they need of this machine, by bubblewrap: others (everybody's but those of this service's "
        "owner), all, or off.",
    )
    sandbox_required: bool = Field(False, description="Do not start where bubblewrap does not work; else such runs are not sandboxed then.")
    sandbox_user: str = Field("nobody", description="User of sandboxed runs, where this service is root; empty: root without privileges.")
    sandbox_process_count: int = Field(
        16_384, ge=0, description="Most processes and threads of a sandboxed run, counted by Linux for each user; 0: no limit."
    )
    sandbox_readable: tuple[Path, ...] = Field(
        (), description="Further directories that sandboxed runs may read; of home and /tmp they see only Python and programs on PATH."
    )
    nsys_program: Path | None = Field(
        None, description="The nsys to profile commands with; unset: from PATH, or the newest in the usual directories."
    )
    allow_catalog_only: bool = Field(False, description="Run only kernels of the node's own catalog.")
    max_configuration_count: int = Field(100_000, ge=1, description="Largest sweep accepted, in configurations.")
    max_queued_run_count: int = Field(100, ge=1, description="Most runs that may wait; more are rejected.")
    run_time_limit_s: float = Field(3600.0, gt=0, description="Seconds of wall clock after which a run is ended.")
    run_memory_limit_bytes: int = Field(16 * GIBIBYTE, ge=2**26, description="Resident bytes of all processes of a run together.")
    configuration_time_limit_s: float = Field(
        60.0, gt=0, description="Seconds without an event from the worker after which it counts as hung."
    )
    grace_s: float = Field(3.0, ge=0, description="Seconds between TERM and KILL when a run is ended.")
    command_grace_s: float = Field(20.0, ge=0, description="Seconds in which the collector of a cancelled command must finish its report.")
    drain_s: float = Field(10.0, ge=0, description="Seconds that a stopping service waits for the run in progress.")
    journal_max_bytes: int = Field(
        2 * GIBIBYTE, ge=2**20, description="Size above which the oldest finished runs are removed from the journal."
    )
    journal_max_age_s: float = Field(30 * 86_400.0, gt=0, description="Age above which finished runs are removed from the journal.")
    bundle_max_bytes: int = Field(256 * 1024**2, ge=1, description="Largest bundle accepted, packed.")
    bundle_max_unpacked_bytes: int = Field(1 * GIBIBYTE, ge=1, description="Largest bundle accepted, unpacked.")
    bundle_max_file_count: int = Field(
        10_000, ge=1, description="Most files and directories in a bundle, including the parents of its paths."
    )
    bundle_max_age_s: float = Field(7 * 86_400.0, gt=0, description="Age since its last use above which a bundle is deleted.")
    bundles_max_bytes: int = Field(
        4 * GIBIBYTE, ge=1, description="Size of all bundles, unpacked, above which the least recently used ones are deleted."
    )
    artifacts_max_bytes: int = Field(
        4 * GIBIBYTE, ge=1, description="Size of all runs' artifacts above which those of the oldest finished runs are deleted."
    )
    telemetry_interval_s: float = Field(0.5, ge=0.1, description="Seconds between telemetry readings while a run is in progress.")
    idle_telemetry_interval_s: float = Field(5.0, ge=0.5, description="Seconds between telemetry readings of an idle node.")

    @property
    def ceilings_file(self) -> Path:
        """Return the path of the measured ceilings of this machine's devices, which are valid for a day."""
        return self.caches_directory / "ceilings.json"

    @property
    def caches_directory(self) -> Path:
        """Return the directory of what runs keep for later ones."""
        return self.data_directory / "caches"


class AnalyzerSettings(GrpcSettings):
    """Settings of the analyzer service."""

    section: ClassVar[str] = "analyzer"
    model_config = SettingsConfigDict(env_prefix="KERNALYSE_ANALYZER_", extra="forbid")

    address: str = Field("127.0.0.1:7002", description="host:port or unix:PATH to listen on; port 0 takes a free one.")
    data_directory: Path = Field(
        default_factory=lambda: data_directory() / "store", description="Directory of the store: database and Parquet files."
    )
    catalogue: str = Field(
        "", description="postgresql://USER:PASSWORD@HOST:PORT/DATABASE of the store's catalogue; empty: SQLite in data_directory."
    )
    peer_address: str = Field(
        "",
        description="host:port at which other analyzers of the same catalogue and data_directory reach this one; each then follows a share "
        "of the nodes, and takes over those of one that is gone. Needs a catalogue on PostgreSQL. Empty: this analyzer is alone.",
    )
    peer_ca_file: Path | None = Field(
        None, description="PEM CA of the other analyzers' certificates; unset: this one's own certificate, where it serves TLS."
    )
    objects: str = Field(
        "", description="s3://BUCKET/PREFIX of the files of finished runs, data_directory being their cache; empty: data_directory alone."
    )
    objects_endpoint: str = Field(
        "", description="http://HOST:PORT or https://HOST:PORT of an object storage other than AWS, as MinIO; empty: AWS."
    )
    objects_cache_bytes: int = Field(
        20 * GIBIBYTE, ge=0, description="Size of these files in data_directory above which the least recently used ones are dropped there."
    )
    node_retry_s: float = Field(2.0, gt=0, description="Seconds between attempts to reach a node.")
    forget_joined_nodes_after_s: float | None = Field(
        7 * 86_400.0, gt=0, description="Seconds after which a node that came by itself and went away is forgotten; its runs stay."
    )
    nodes_file: Path | None = Field(
        None, description="TOML file of nodes, a table [[nodes]] each with address, token_file and ca_file; followed while it changes."
    )
    nodes_dns: str = Field("", description="NAME:PORT in DNS each of whose addresses is a node, as of a headless service; empty: none.")
    nodes_dns_token_file: Path | None = Field(None, description="File with the token of those nodes; unset: the service's own token file.")
    nodes_dns_ca_file: Path | None = Field(None, description="PEM CA of their certificates, which are for NAME; unset: no TLS.")
    nodes_look_interval_s: float = Field(5.0, gt=0, description="Seconds between looks at nodes_file and nodes_dns.")
    # Ten million kernels in SQLite are 6 GB, the largest that people record; what exceeds the memory below is rejected in any case.
    import_max_bytes: int = Field(16 * GIBIBYTE, ge=1, description="Largest import accepted, in bytes of all its files.")
    import_process_count: int = Field(4, ge=1, description="Traces read at once, each by a process of its own.")
    import_memory_bytes: int = Field(
        8 * GIBIBYTE, ge=2**28, description="Memory of all reading processes together; an import that needs more by itself is rejected."
    )
    dask: str = Field(
        "", description="Address of a Dask scheduler, as tcp://HOST:8786, whose workers read traces; empty: processes of this machine."
    )
    max_active_runs_per_person: int | None = Field(None, ge=1, description="Runs of one person that may wait or run; unset: no limit.")
    max_device_s_per_person_and_day: float | None = Field(
        None, gt=0, description="Seconds of devices that one person may use within 24 hours; unset: no limit."
    )
    max_stored_bytes_per_person: int | None = Field(
        None, ge=1, description="Bytes of one person's runs in the store, beyond which no more are started or imported; unset: no limit."
    )
    oidc_issuer: str = Field("", description="URL of the OpenID Connect provider whose people may sign in at dashboards; empty: none.")
    oidc_client_id: str = Field("", description="Id of the dashboard at that provider.")
    oidc_name_claim: str = Field("email", description="Claim of its tokens with the person's name; sub where it is missing.")
    oidc_groups_claim: str = Field("groups", description="Claim with the person's groups.")
    oidc_scopes: tuple[str, ...] = Field(
        (), description="Scopes of groups, each as gpu-team=source; the group * is everybody. The highest of a person counts."
    )
    op_registry_directory: Path | None = Field(
        None,
        description="Directory of an op_registry.py of your own, code that computes the cost of operations in commands.json; unset: none.",
    )


class UiSettings(ServiceSettings):
    """Settings of the dashboard."""

    section: ClassVar[str] = "ui"
    model_config = SettingsConfigDict(env_prefix="KERNALYSE_UI_", extra="forbid")

    address: str = Field("127.0.0.1:7003", description="host:port to serve pages on; port 0 takes a free one.")
    analyzer_address: str = Field("127.0.0.1:7002", description="Address of the analyzer.")
    analyzer_ca_file: Path | None = Field(None, description="PEM CA of an analyzer that serves TLS.")
    analyzer_client_certificate_file: Path | None = Field(
        None, description="PEM certificate for an analyzer that requires one (its client_ca_file)."
    )
    analyzer_client_key_file: Path | None = Field(None, description="PEM key of that certificate.")
    analyzer_token_file: Path | None = Field(None, description="File with the analyzer's token; unset: the service's own token file.")
    sign_in: Literal["token", "password", "oidc"] = Field(
        "token",
        description="How people sign in: token (this service's, or one of the analyzer's), password (with the name), or oidc "
        "(OpenID Connect).",
    )
    oidc_issuer: str = Field("", description="URL of the OpenID Connect provider, as in the analyzer's oidc_issuer.")
    oidc_client_id: str = Field("", description="Id of this dashboard at the provider, as in the analyzer's oidc_client_id.")
    oidc_client_secret_file: Path | None = Field(
        None, description="File with the client's secret; unset: a public client, which proves itself by PKCE."
    )
    allowed_hosts: tuple[str, ...] = Field((), description="Further host names (with port) under which browsers may reach the dashboard.")
    allowed_frame_ancestors: tuple[str, ...] = Field(
        (), description="Origins of other sites, as https://wiki.example.org, whose pages may show charts in frames, by links made for it."
    )
    update_interval_s: float = Field(0.1, ge=0.05, le=5, description="Seconds between updates of a page while the server keeps up.")


SETTINGS_CLASSES: tuple[type[ServiceSettings], ...] = (ProfilerSettings, AnalyzerSettings, UiSettings)


# ---------------------------------------------------------------- discovery
# A service advertises its address in a file, which `kernalyse.discovery` finds.

__all__ = ["Announcement", "advertised", "find_service"]


def _on_this_machine(address: str) -> str:
    """Return where programs of this machine find a service that listens on all of its addresses."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("0.0.0.0", "[::]") else address


@contextmanager
def advertised(path: Path, service: str, address: str, token_file: Path, ca_file: Path | None = None) -> Iterator[Announcement]:
    """Write the file while the block runs, and remove it afterwards unless another service has replaced it."""
    own = Announcement(
        service,
        _on_this_machine(address),
        os.getpid(),
        start_ticks(os.getpid()) or 0,
        str(token_file),
        None if ca_file is None else str(ca_file),
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(own)))
    temporary.replace(path)
    try:
        yield own
    finally:
        if read_announcement(path) == own:
            path.unlink(missing_ok=True)
