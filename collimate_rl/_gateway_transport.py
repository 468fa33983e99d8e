"""Which transport goes under the gateway's client."""

from __future__ import annotations

import importlib
import logging
import urllib.request

from collimate_rl._connection import Endpoint
from collimate_rl._http import HttpPool
from collimate_rl._sockets import ClientCert
from collimate_rl._transport import Transport

_log = logging.getLogger(__name__)


def transport_for(origin: str, *, ca_file: str | None = None, client_cert: ClientCert | None = None) -> Transport:
    """A transport to `origin`: over `requests` where it is installed, else the standard library's.

    `origin` is `https://host[:port][/prefix]`, `http://…` or `unix:/path` (never over `requests`). Only the one over
    `requests` goes through proxies. Raises `ValueError` for what cannot be.
    """
    endpoint = Endpoint.parse(origin)
    if endpoint.unix_path is None:
        try:
            # By name: the SDK's core does not depend on `requests`.
            module = importlib.import_module("collimate_rl._requests_transport")
        except ImportError as exc:
            if _has_proxy(endpoint):
                _log.warning(
                    "a proxy is set for %s and cannot be used: pip install 'collimate-rl[gateway]' (%s)", endpoint, exc
                )
        else:
            transport: Transport = module.RequestsTransport(endpoint, ca_file=ca_file, client_cert=client_cert)
            return transport
    return HttpPool(endpoint, ca_file=ca_file, client_cert=client_cert)


def _has_proxy(endpoint: Endpoint) -> bool:
    proxies = urllib.request.getproxies()
    named = proxies.get(endpoint.scheme) or proxies.get("all")
    return bool(named) and not urllib.request.proxy_bypass(f"{endpoint.host}:{endpoint.port}")
