"""A certificate for loopback, the authority that vouches for it, and a client's certificate of that authority."""

from __future__ import annotations

from pathlib import Path

import trustme


def write_certificate(folder: Path) -> Path:
    """Write `cert.pem` and `key.pem` of a server and `client.pem` of a client to a folder; the file of their
    authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(str(folder / "cert.pem"), append=number > 0)
    authority.issue_cert("worker@example.com").private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return folder / "ca.pem"
