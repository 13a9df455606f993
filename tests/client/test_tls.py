"""TLS without a socket: two ends joined by hand."""

import ssl

import pytest

from loadcell.client.tls import TlsStream, context
from loadcell.errors import UserError
from loadcell.testing.certificate import self_made_certificate


def test_a_ca_file_that_cannot_be_used_is_wrong_use(tmp_path):
    with pytest.raises(UserError, match=r"--ca-file .*missing\.pem: cannot be used"):
        context(str(tmp_path / "missing.pem"), insecure=False)
    (tmp_path / "no.pem").write_text("not a certificate")
    with pytest.raises(UserError, match="--ca-file"):
        context(str(tmp_path / "no.pem"), insecure=False)


def test_it_verifies_unless_told_otherwise():
    assert context(None, insecure=False).verify_mode == ssl.CERT_REQUIRED
    careless = context(None, insecure=True)
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)


def test_bytes_pass_whatever_the_split_of_the_ciphertext(tmp_path):
    certificate = self_made_certificate(tmp_path)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificate.server.wrap_bio(incoming, outgoing, server_side=True)
    stream = TlsStream(context(str(certificate.ca_file), insecure=False), "127.0.0.1")
    shaken = False
    while not (stream.established and shaken):
        if not stream.established:
            stream.handshake()
        incoming.write(stream.pending())
        try:
            server.do_handshake()
            shaken = True
        except ssl.SSLWantReadError:
            pass
        for byte in outgoing.read():
            stream.receive(bytes([byte]))
    stream.write(b"question" * 10_000)
    incoming.write(stream.pending())
    question = b""
    while len(question) < 80_000:
        question += server.read(1 << 20)
    assert question == b"question" * 10_000
    server.write(b"answer" * 9_000)
    ciphertext, got = outgoing.read(), b""
    for at in range(0, len(ciphertext), 777):
        stream.receive(ciphertext[at : at + 777])
        got += stream.read()
    assert got == b"answer" * 9_000
    stream.receive(b"")
    assert stream.read() == b""
