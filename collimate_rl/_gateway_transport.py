"""Which transport goes under the gateway's client."""

from __future__ import annotations

from collimate_rl._connection import Endpoint
from collimate_rl._http import HttpPool
from collimate_rl._sockets import ClientCert
from collimate_rl._transport import Transport


def transport_for(origin: str, *, ca_file: str | None = None, client_cert: ClientCert | None = None) -> Transport:
    """A transport to `origin` (`https://host[:port][/prefix]`). Raises `ValueError` for what cannot be."""
    return HttpPool(Endpoint.parse(origin), ca_file=ca_file, client_cert=client_cert)
