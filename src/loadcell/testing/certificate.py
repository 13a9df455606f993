"""A certificate of our own making for https tests: one authority, one server certificate for the loopback names."""

import ssl
from pathlib import Path

import trustme
from msgspec import Struct


class Certificate(Struct, frozen=True):
    """`server` for `ScriptedServer(tls=...)`; `ca_file` is what a client must trust to believe it."""

    server: ssl.SSLContext
    ca_file: Path


def self_made_certificate(folder: Path, *names: str) -> Certificate:
    """Write an authority's PEM to `folder` and load a server context for `names` (default: the loopback names)."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("127.0.0.1", "::1", "localhost"))).configure_cert(context)
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    return Certificate(context, ca_file)
