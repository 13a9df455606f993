"""TLS without a socket: the same reader drains the ciphertext, kernel stamps included, and this turns it into plain bytes."""

import ssl

from loadcell.errors import UserError

_READ = 65_536


def context(ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """Verifying by default, with the system's authorities or `ca_file`; `insecure` verifies nothing. Offers http/1.1 only."""
    try:
        made = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise UserError(f"--ca-file {ca_file}: cannot be used ({error}); give a PEM file of certificates") from error
    if insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    made.set_alpn_protocols(["http/1.1"])
    return made


class TlsStream:
    """One connection's TLS state. Bytes in, bytes out; nothing is read from or written to a socket here."""

    __slots__ = ("_incoming", "_object", "_outgoing", "established")

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.established = False

    def receive(self, raw: bytes) -> None:
        """Ciphertext from the peer; b"" when it closed."""
        if raw:
            self._incoming.write(raw)
        else:
            self._incoming.write_eof()

    def handshake(self) -> bool:
        """Go on with the handshake; true once it is complete. Raises ssl.SSLError (a failed verification among them)."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True

    def read(self) -> bytes:
        """All plain bytes that can be had now. Raises ssl.SSLError when the peer broke the protocol."""
        parts = []
        while True:
            try:
                part = self._object.read(_READ)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break
            if not part:
                break
            parts.append(part)
        return b"".join(parts)

    def write(self, plain: bytes) -> None:
        self._object.write(plain)

    @staticmethod
    def is_broken(error: OSError) -> bool:
        """Whether TLS failed, not the socket under it."""
        return isinstance(error, ssl.SSLError)

    def pending(self) -> bytes:
        """Ciphertext to send."""
        return self._outgoing.read()
