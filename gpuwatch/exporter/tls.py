"""From a web configuration to an `ssl.SSLContext`, with errors that name the file and what is wrong with it."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.config import ConfigError
from gpuwatch.exporter.webconfig import CIPHERS, CURVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatch.exporter.webconfig import TlsConfig

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


def make_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the settings of a TLS server.

    Raises:
        ConfigError: A file is missing or unreadable, is no certificate or key, or the two do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    context.set_alpn_protocols(["http/1.1"])
    suites = [CIPHERS[name] for name in tls.ciphers if name in CIPHERS]
    with contextlib.suppress(ssl.SSLError):  # OpenSSL without one of them offers the others
        if suites:
            context.set_ciphers(":".join(suites))
    if tls.curve:
        try:
            context.set_ecdh_curve(CURVES[tls.curve])
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"curve_preferences: this OpenSSL does not have {tls.curve}") from None
    with _files(tls) as (cert, key):
        _load_pair(context, cert, key, tls)
    if tls.client_auth != "NoClientCert":
        _load_authority(context, tls)
    return context


def certificate_times(tls: TlsConfig) -> tuple[float, float] | None:
    """Return from when to when the certificate is valid, in seconds since the epoch; None where that cannot be read."""
    with _files(tls) as (cert, _):
        decode = getattr(ssl._ssl, "_test_decode_cert", None)  # type: ignore[attr-defined]  # noqa: SLF001  # the only reader of a certificate file in the standard library
        if decode is None:
            return None
        try:
            told = decode(cert)
            return float(ssl.cert_time_to_seconds(told["notBefore"])), float(ssl.cert_time_to_seconds(told["notAfter"]))
        except (ssl.SSLError, OSError, KeyError, ValueError):
            return None


def validity_warning(tls: TlsConfig, now: float) -> str:
    """Return one line about a certificate that is not valid at `now` (seconds since the epoch), or nothing."""
    times = certificate_times(tls)
    if times is None or times[0] <= now < times[1]:
        return ""
    early = now < times[0]
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(times[0] if early else times[1]))
    what = f"is not valid before {when}" if early else f"expired on {when}"
    return f"{tls.cert_file or 'the certificate'}: {what}; clients that check it refuse to connect"


def allowed_client(certificate: Mapping[str, Any] | None, sans: tuple[str, ...]) -> bool:
    """Say whether a verified client certificate (as `ssl` decodes it) has one of the names `sans`."""
    if not sans:
        return True
    names = (certificate or {}).get("subjectAltName", ())
    return any(value in sans for kind, value in names if kind in ("DNS", "IP Address", "email", "URI"))


def _load_pair(context: ssl.SSLContext, cert: str, key: str, tls: TlsConfig) -> None:
    for name, what in ((tls.cert_file, "cert_file"), (tls.key_file, "key_file")):
        _readable(name, what)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{tls.key_file or 'key'}: is not the key of {tls.cert_file or 'cert'}") from None
        good = certificate_times(tls) is not None
        name, what = (tls.key_file or "key", "private key") if good else (tls.cert_file or "cert", "certificate")
        raise ConfigError(f"{name}: holds no {what} in PEM form") from None
    except ValueError as error:
        raise ConfigError(f"{tls.key_file or 'key'}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{tls.cert_file or 'cert'}: {error.strerror or error}") from None


def _no_password() -> str:
    raise ValueError("the key is protected by a password; allowed: a key without one, readable by this user only")


def _load_authority(context: ssl.SSLContext, tls: TlsConfig) -> None:
    _readable(tls.client_ca_file, "client_ca_file")
    try:
        context.load_verify_locations(cafile=tls.client_ca_file or None, cadata=tls.client_ca or None)
    except (ssl.SSLError, OSError, ValueError):
        raise ConfigError(f"{tls.client_ca_file or 'client_ca'}: holds no certificate in PEM form") from None
    required = tls.client_auth == "RequireAndVerifyClientCert"
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def _readable(name: str, what: str) -> None:
    if not name:
        return
    try:
        path = Path(name)
        if not path.is_file():
            path.stat()
            raise ConfigError(f"{what} {name}: is no regular file")
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"{what} {name}: {error.strerror}") from None


@contextlib.contextmanager
def _files(tls: TlsConfig) -> Iterator[tuple[str, str]]:
    """Yield paths of certificate and key; what is written in the configuration itself goes to files for a moment."""
    with contextlib.ExitStack() as stack:
        paths = []
        for name, text in ((tls.cert_file, tls.cert), (tls.key_file, tls.key)):
            if name:
                paths.append(name)
                continue
            handle, path = tempfile.mkstemp(suffix=".pem")  # created for this user only
            stack.callback(os.unlink, path)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            paths.append(path)
        yield paths[0], paths[1]
