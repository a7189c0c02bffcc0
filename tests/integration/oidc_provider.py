"""A small OpenID Connect provider: whoever comes is signed in at once, as the person that the test has set."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID = "kernalyse-dashboard"
CLIENT_SECRET = "a secret of the client"


@dataclass(slots=True)
class Provider:
    """claims: of the next tokens, beside those that all have. requests: bodies that came to the token endpoint."""

    issuer: str
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "1"}))
    claims: dict[str, Any] = field(default_factory=dict)
    requests: list[dict[str, str]] = field(default_factory=list)

    def id_token(self, **claims: Any) -> str:
        now = int(time.time())
        every = {"iss": self.issuer, "aud": CLIENT_ID, "sub": "17", "iat": now, "exp": now + 300}
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, {**every, **self.claims, **claims}, self.key)


@contextmanager
def running_provider() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/.well-known/openid-configuration":
                names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
                self.answer({"issuer": provider.issuer, **{name: f"{provider.issuer}/{path}" for name, path in names.items()}})
            elif parts.path == "/keys":
                self.answer(KeySet([provider.key]).as_dict(private=False))
            elif parts.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                assert (query["client_id"], query["response_type"]) == (CLIENT_ID, "code")
                self.send_response(302)
                back = urlencode({"code": "a code", "state": query["state"]})
                self.send_header("Location", f"{query['redirect_uri']}?{back}")
                self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            provider.requests.append({name: values[0] for name, values in parse_qs(body).items()})
            self.answer({"access_token": "opaque", "token_type": "Bearer", "expires_in": 300, "id_token": provider.id_token()})

        def answer(self, content: Any) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Provider(f"http://127.0.0.1:{server.server_port}")
        Thread(target=server.serve_forever, daemon=True).start()
        yield provider
        server.shutdown()
