"""Certificates for HTTPS: checks, and their replacement while the server runs."""

from __future__ import annotations

import ssl

from uvicorn import Config
from uvicorn.config import create_ssl_context

from ..errors import SettingsError
from .security import read_content


def make_tls_context(config: Config) -> ssl.SSLContext | None:
    """Return the context for the certificate that a server's files contain now; None without one.

    Raises:
        SettingsError: a file is missing or cannot be read, or they do not belong together.
    """
    key, certificate = config.ssl_keyfile, config.ssl_certfile
    check_tls(None if key is None else str(key), None if certificate is None else str(certificate))
    if certificate is None:
        return None
    try:
        return create_ssl_context(
            certificate,
            key,
            config.ssl_keyfile_password,
            config.ssl_version,
            config.ssl_cert_reqs,
            config.ssl_ca_certs,
            config.ssl_ciphers,
        )
    except ssl.SSLError as error:
        raise SettingsError(
            f"no certificate with its private key ({error.reason or error})",
            where=", ".join(str(file) for file in (certificate, key) if file is not None),
            fix="Give PEM files that belong together.",
        ) from None


def replace_tls_context(listening: ssl.SSLContext, context: ssl.SSLContext) -> None:
    """Use another certificate for the next connections to sockets that listen already.

    `load_cert_chain` on the first context would not do: OpenSSL keeps a certificate for each kind
    of key, so a new one of another kind would only be added.
    """

    def choose(connection: ssl.SSLObject, *_: object) -> None:
        connection.context = context

    listening.sni_callback = choose


def check_tls(key: str | None, certificate: str | None) -> None:
    """Check that the files for HTTPS contain a certificate and a private key.

    Args:
        key: PEM file of the private key; if omitted, the certificate's file must contain it.
        certificate: PEM file of the certificate; if both are omitted, HTTPS is off.

    Raises:
        SettingsError: a file is missing, cannot be read, or does not contain its part.
    """
    if certificate is None:
        if key is not None:
            fix = "Give the certificate's PEM file as --tls-certificate."
            raise SettingsError("--tls-key is given without --tls-certificate", fix=fix)
        return
    for file, what, option in (
        (certificate, "certificate", "--tls-certificate"),
        (key or certificate, "private key", "--tls-key"),
    ):
        if f"{what.upper()}-----".encode() not in read_content(file):
            fix = f"Give its PEM file as {option}."
            raise SettingsError(f"there is no {what} in it", where=file, fix=fix)
