"""People at a dashboard: how they sign in, and that whatever they start or change carries their own token."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

import grpc
import pytest
from joserfc.jwk import RSAKey

from kernalyse.channel import Endpoint
from kernalyse.services.analyzer.sign_in import IdTokens
from kernalyse.services.core.access import METHOD_SCOPES
from kernalyse.services.core.errors import NodeNotFoundError, ScopeMissingError, UnauthenticatedError, UnavailableError
from kernalyse.services.core.identity import Kind, Scope, TokenFile, with_lower
from kernalyse.services.core.model import TableQuery
from kernalyse.services.core.settings import AnalyzerSettings
from kernalyse.services.ui.data.client import VISITOR, AnalyzerClient, Session
from kernalyse.services.ui.uploads.handlers import PAGE_HEADER
from kernalyse.services.ui.uploads.imports import FileToImport, Imports, ImportState
from kernalyse.v1 import analyzer_service_pb2
from tests.browser.socket_viewer import Answer, ask, log_in
from tests.integration.analyzer_under_test import code_of
from tests.integration.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider, running_provider
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

METHODS = analyzer_service_pb2.DESCRIPTOR.services_by_name["AnalyzerService"].methods
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def services() -> Iterator[ServiceProcesses]:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            yield services
        finally:
            services.stop_all()


@pytest.fixture(scope="module")
def analyzer(services: ServiceProcesses) -> ServiceProcess:
    return services.start("analyzer")


@pytest.fixture(scope="module")
def tokens(services: ServiceProcesses, analyzer: ServiceProcess) -> TokenFile:
    """Of the analyzer."""
    return TokenFile(AnalyzerSettings.load().tokens_path())


@pytest.fixture(scope="module")
def dashboard(services: ServiceProcesses, analyzer: ServiceProcess) -> ServiceProcess:
    return services.start("ui", "--analyzer-address", analyzer.address)


@pytest.fixture
def client(analyzer: ServiceProcess) -> Iterator[AnalyzerClient]:
    client = AnalyzerClient(analyzer.endpoint, lambda: None)
    client.start()
    yield client
    client.stop()


async def session_of(client: AnalyzerClient, tokens: TokenFile, scope: Scope) -> Session:
    return await client.sign_in(token=tokens.issue(f"with {scope}", scope)[1])


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("scope", list(Scope))
async def test_each_rpc_carries_the_persons_token(client: AnalyzerClient, tokens: TokenFile, scope: Scope) -> None:
    """The dashboard's own token would let everything in."""
    acting = client.acting_for(await session_of(client, tokens, scope))
    for method in METHODS:
        needed = METHOD_SCOPES[f"/kernalyse.v1.AnalyzerService/{method.name}"]
        if method.name in ("WatchNodes", "SignIn", "RenewToken"):  # of the dashboard itself: shared, or without an end
            continue
        code = await acting.call(partial(code_of, method=method))
        assert (code is grpc.StatusCode.PERMISSION_DENIED) is (needed not in with_lower([scope])), method.name


async def test_who_looks_at_one_chart_may_only_read(client: AnalyzerClient) -> None:
    acting = client.acting_for(VISITOR)
    for method in METHODS:
        needed = METHOD_SCOPES[f"/kernalyse.v1.AnalyzerService/{method.name}"]
        if method.name not in ("WatchNodes", "SignIn", "RenewToken"):
            code = await acting.call(partial(code_of, method=method))
            assert (code is grpc.StatusCode.PERMISSION_DENIED) is (needed is not Scope.READ), method.name


async def test_a_visitor_of_a_chart_reads_alone_whatever_the_dashboard_may(analyzer: ServiceProcess, tokens: TokenFile) -> None:
    _, token = tokens.issue("ui-2", Scope.ADMIN, Kind.DASHBOARD)
    client = AnalyzerClient(Endpoint(analyzer.address, token), lambda: None)
    client.start()
    remove = analyzer_service_pb2.RemoveNodeRequest(address="x")
    with pytest.raises(NodeNotFoundError):
        await client.call(lambda stub: stub.RemoveNode(remove))
    with pytest.raises(ScopeMissingError, match="a token of ui-2 with scope read"):
        await client.acting_for(VISITOR).call(lambda stub: stub.RemoveNode(remove))
    await asyncio.to_thread(client.stop)


async def test_an_import_is_sent_and_cancelled_with_the_token_of_who_asks(client: AnalyzerClient, tokens: TokenFile) -> None:
    reader, writer = [client.acting_for(await session_of(client, tokens, scope)) for scope in (Scope.READ, Scope.MEASURE)]
    imports = Imports(client)
    content = json.dumps({"schemaVersion": 1, "traceEvents": [], "note": "x" * 200_000}).encode()
    refused = imports.begin((FileToImport("a.json", len(content), 1),), reader)
    with suppress(ScopeMissingError, UnavailableError):  # told of by the write, or after it
        await refused.write(refused.claim(), refused.extent, content)
    await asyncio.wait_for(refused.settled.wait(), 20)
    assert (refused.state, "a token of with read" in refused.problem) == (ImportState.FAILED, True), refused.problem
    begun = imports.begin((FileToImport("b.json", len(content), 2),), writer)
    await begun.write(begun.claim(), begun.extent, content[:100_000])
    with pytest.raises(ScopeMissingError, match="with read"):
        await begun.cancel(reader)
    assert not begun.state.is_final
    await begun.cancel(writer)
    assert begun.state.is_final


async def test_a_token_is_renewed_until_it_is_revoked(client: AnalyzerClient, tokens: TokenFile) -> None:
    _, token = tokens.issue("carol", Scope.READ)
    session = await client.sign_in(token=token)
    first, session.renew_unix_s = session.short_token, time.time()
    acting = client.acting_for(session)
    await acting.table(query_of_runs())
    assert session.short_token != first
    tokens.revoke("carol")
    await asyncio.sleep(1.1)
    with pytest.raises(UnauthenticatedError):
        await acting.table(query_of_runs())
    session.renew_unix_s = time.time()
    with pytest.raises(UnauthenticatedError, match="Sign in again"):
        await acting.table(query_of_runs())
    assert not session.is_valid


def query_of_runs() -> TableQuery:
    return TableQuery("measurements", limit=1)


# ---------------------------------------------------------------- the gate


def form(**fields: str) -> bytes:
    return urlencode(fields).encode()


def test_a_person_signs_in_with_a_token_of_the_analyzer(dashboard: ServiceProcess, tokens: TokenFile) -> None:
    url = f"http://{dashboard.address}"
    entry, token = tokens.issue("alice", Scope.READ)
    cookie = log_in(dashboard.address, token)
    assert token not in cookie
    assert "Signed in as alice" in ask(f"{url}/live", Cookie=cookie).text
    begun = ask(
        f"{url}/imports",
        data=json.dumps({"files": [{"name": "a.json", "size": 4, "modified": 0}]}).encode(),
        Cookie=cookie,
        **{PAGE_HEADER: "1"},
    )
    place = f"{url}/imports/{json.loads(begun.text)['upload_id']}"
    put(f"{place}?file=0&offset=0", b"{  }", cookie)
    assert "a token of alice with scope read; expected scope measure" in ask(place, Cookie=cookie).text
    tokens.revoke(entry.token_id)


def put(url: str, content: bytes, cookie: str) -> str:
    request = urllib.request.Request(url, data=content, method="PUT", headers={"Cookie": cookie, PAGE_HEADER: "1"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return str(response.read().decode())


def test_what_is_nobodys_token_is_refused(dashboard: ServiceProcess) -> None:
    answer = ask(f"http://{dashboard.address}/login", data=form(token="x", next="/live"))
    assert answer.status == 401
    assert "That token is not known here" in answer.text


def test_who_signs_out_signs_in_again(dashboard: ServiceProcess, tokens: TokenFile) -> None:
    url = f"http://{dashboard.address}"
    cookie = log_in(dashboard.address, tokens.issue("bob", Scope.READ)[1])
    answer = ask(f"{url}/logout", Cookie=cookie)
    assert (answer.status, answer.headers["Location"]) == (303, "/login")
    assert answer.headers["Set-Cookie"].startswith(cookie.partition("=")[0] + '=""')


def test_with_passwords_no_token_opens_the_dashboard(
    services: ServiceProcesses, analyzer: ServiceProcess, tokens: TokenFile, tmp_path: Path
) -> None:
    own = tmp_path / "ui-token"
    _, text = tokens.issue("ui-1", Scope.READ, Kind.DASHBOARD)
    own.write_text(text)
    own.chmod(0o600)
    ui = services.start(
        "ui", "--analyzer-address", analyzer.address, "--sign-in", "password", "--analyzer-token-file", str(own), "--token-file", str(own)
    )
    url = f"http://{ui.address}"
    tokens.set_password("dave", Scope.MEASURE, PASSWORD)
    form_page = ask(f"{url}/live").text
    assert 'name="password"' in form_page
    assert 'name="token"' not in form_page
    assert ask(f"{url}/live?token={text}").status == 401
    wrong = ask(f"{url}/login", data=form(name="dave", password="wrong", next="/live"))
    assert "Name or password are not known" in wrong.text
    answer = ask(f"{url}/login", data=form(name="dave", password=PASSWORD, next="/kernels"))
    assert (answer.status, answer.headers["Location"]) == (303, "/kernels")
    cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
    assert PASSWORD not in cookie
    for path in ("/live/ws", "/imports", f"/imports/{'0' * 32}", "/files", "/export/last.html", "/link"):
        assert ask(url + path).status == 401, path
    for path in ("/live", "/live/", "/static/js/bokeh.min.js", "/assets/tokens.css", "/charts/roofline", "/download/kernels.csv"):
        assert ask(url + path).status == 401, path
        assert ask(url + path, Cookie=cookie).status == 200, path
    ui.stop()


# ---------------------------------------------------------------- OpenID Connect


class Jar:
    """A browser's cookies, for one host."""

    def __init__(self) -> None:
        self.cookies: dict[str, str] = {}

    def get(self, url: str) -> Answer:
        answer = ask(url, Cookie="; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        for header in answer.headers.get_all("Set-Cookie", []):
            name, _, value = header.partition(";")[0].partition("=")
            if value in ("", '""'):
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def follow(self, url: str) -> Answer:
        """Through all redirects."""
        while True:
            answer = self.get(url)
            if answer.status not in (302, 303):
                return answer
            url = urljoin(url, answer.headers["Location"])


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module", params=["secret", "PKCE"])
def trusting(provider: Provider, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A dashboard whose people sign in at the provider, with an analyzer of its own."""
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        known = ("--oidc-issuer", provider.issuer, "--oidc-client-id", CLIENT_ID)
        secret = tmp_path_factory.mktemp("secret") / "secret"
        secret.write_text(CLIENT_SECRET)
        proof = ("--oidc-client-secret-file", str(secret)) if request.param == "secret" else ()
        try:
            analyzer = services.start("analyzer", *known, "--oidc-scopes", "gpu-team=source", "--oidc-scopes", "staff=read")
            yield services.start("ui", "--analyzer-address", analyzer.address, "--sign-in", "oidc", *known, *proof)
        finally:
            services.stop_all()


def test_a_person_signs_in_at_the_provider_and_gets_the_scope_of_the_group(trusting: ServiceProcess, provider: Provider) -> None:
    url, jar = f"http://{trusting.address}", Jar()
    provider.claims = {"email": "erin@example.org", "groups": ["staff", "gpu-team"]}
    for path in ("/kernels", "/kernels/", "/static/js/bokeh.min.js", "/charts/roofline"):
        assert ask(url + path).status == 303, path
    back = jar.follow(f"{url}/kernels?kernel=saxpy")
    assert (back.status, "/kernels?kernel=saxpy" in back.text) == (200, True)
    assert set(jar.cookies) & {"id_token", "access_token", "user"} == set()
    assert "Signed in as erin@example.org" in jar.get(f"{url}/kernels").text
    assert jar.get(f"{url}/assets/tokens.css").status == 200
    proof = provider.requests[-1]
    assert proof.get("client_secret", CLIENT_SECRET) == CLIENT_SECRET
    assert ("client_secret" in proof) != ("code_verifier" in proof)


def test_whoever_is_in_no_group_is_told_so(trusting: ServiceProcess, provider: Provider) -> None:
    provider.claims = {"email": "mallory@example.org", "groups": ["guests"]}
    answer = Jar().follow(f"http://{trusting.address}/live")
    assert answer.status == 403
    assert "sign-in of mallory@example.org: found groups guests; expected one of gpu-team, staff" in answer.text


@pytest.mark.parametrize(
    "claims", [{"aud": "another"}, {"iss": "https://elsewhere.example"}, {"exp": 1}, {"sub": None}], ids=lambda claims: next(iter(claims))
)
def test_a_token_that_is_not_for_this_dashboard_is_refused(trusting: ServiceProcess, provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = {"email": "erin@example.org", "groups": ["staff"]}
    id_tokens = IdTokens(provider.issuer, CLIENT_ID, "email", "groups", {"staff": Scope.READ})
    assert id_tokens.check(provider.id_token()).name == "erin@example.org"
    with pytest.raises(UnauthenticatedError, match="a token that does not pass"):
        id_tokens.check(provider.id_token(**claims))


def test_a_token_that_is_signed_with_another_key_is_refused(provider: Provider) -> None:
    provider.claims = {"groups": ["staff"]}
    id_tokens = IdTokens(provider.issuer, CLIENT_ID, "email", "groups", {"staff": Scope.READ})
    assert id_tokens.check(provider.id_token()).name == "17"  # without the claim of the name: the subject
    known, provider.key = provider.key, RSAKey.generate_key(2048, {"kid": "1"})
    try:
        with pytest.raises(UnauthenticatedError, match="BadSignature"):
            id_tokens.check(provider.id_token())
        provider.key = RSAKey.generate_key(2048, {"kid": "2"})
        later = IdTokens(provider.issuer, CLIENT_ID, "email", "groups", {"staff": Scope.READ}, clock=time.time)
        assert later.check(provider.id_token()).name == "17"
    finally:
        provider.key = known


def test_a_provider_that_does_not_answer_is_named(services: ServiceProcesses) -> None:
    with pytest.raises(UnavailableError, match=r"OpenID Connect provider http://127\.0\.0\.1:1: found .* Check analyzer\.oidc_issuer"):
        IdTokens("http://127.0.0.1:1", CLIENT_ID, "email", "groups", {}).check("a.b.c")
    with pytest.raises(AssertionError, match=r"setting ui\.oidc_issuer: found http://127\.0\.0\.1:1"):
        services.start("ui", "--sign-in", "oidc", "--oidc-issuer", "http://127.0.0.1:1", "--oidc-client-id", CLIENT_ID)
