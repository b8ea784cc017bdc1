"""The same security for the Faust apps: librdkafka's properties as the credentials that Faust's aiokafka driver takes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faust.auth import Credentials

_UNDERSTOOD = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)


class UnsupportedSecurity(ValueError):
    """Security properties that the Faust apps cannot be given; the text names the property."""


def broker_credentials(extra: Mapping[str, str]) -> Credentials | None:
    """Faust's `broker_credentials` for the security in `extra` (librdkafka's names); None for plaintext.

    Raises UnsupportedSecurity for a protocol, a mechanism or a security property that has no counterpart.
    """
    protocol = extra.get("security.protocol", "plaintext").lower()
    _require_understood(extra)
    if protocol == "plaintext":
        return None
    from faust import SASLCredentials, SSLCredentials

    if protocol == "ssl":
        return SSLCredentials(ssl_context(extra))
    context = ssl_context(extra) if protocol == "sasl_ssl" else None
    return SASLCredentials(
        username=extra.get("sasl.username"),
        password=extra.get("sasl.password"),
        mechanism=_mechanism(extra),
        ssl_context=context,
    )


def ssl_context(extra: Mapping[str, str]) -> ssl.SSLContext:
    """TLS as librdkafka's `ssl.*` properties describe it; verification is on unless it was switched off by name."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=extra.get("ssl.ca.location"))
    if extra.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if extra.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "ssl.certificate.location" in extra:
        context.load_cert_chain(extra["ssl.certificate.location"], extra.get("ssl.key.location"), extra.get("ssl.key.password"))
    return context


def _mechanism(extra: Mapping[str, str]) -> str:
    mechanism = extra.get("sasl.mechanism") or extra.get("sasl.mechanisms") or "GSSAPI"
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise UnsupportedSecurity(f"sasl.mechanism {mechanism!r}: the streams know PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512")
    return mechanism


def _require_understood(extra: Mapping[str, str]) -> None:
    protocol = extra.get("security.protocol", "plaintext").lower()
    if protocol not in ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"):
        raise UnsupportedSecurity(f"security.protocol {protocol!r}: use plaintext, ssl, sasl_plaintext or sasl_ssl")
    for key in extra:
        if key.startswith(("sasl.", "ssl.", "enable.ssl.")) and key not in _UNDERSTOOD:
            raise UnsupportedSecurity(f"{key}: the streams have no counterpart of it; they know {', '.join(sorted(_UNDERSTOOD))}")
