"""Prometheus' web-configuration file: TLS, basic authentication and response headers, with the same keys.

Source: ``docs/web-configuration.md`` of prometheus/exporter-toolkit. Keys that have no meaning here are read and
checked: ``http2`` and ``prefer_server_cipher_suites`` (we speak HTTP/1.1, and OpenSSL follows the server's order).
Paths are relative to the folder of the file. Unknown keys are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.alerts.yamlfile import YamlFile
from gpuwatch.config import ConfigError

if TYPE_CHECKING:
    from yaml.nodes import Node

ROOT_KEYS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
TLS_KEYS = (
    "cert",
    "key",
    "client_ca",
    "cert_file",
    "key_file",
    "client_auth_type",
    "client_ca_file",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)
HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
_HEADER_VALUES = {"X-Frame-Options": ("deny", "sameorigin"), "X-Content-Type-Options": ("nosniff",)}
VERSIONS = ("TLS12", "TLS13")
CLIENT_AUTH = (
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert")
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# Go's names (crypto/tls) of the suites that OpenSSL offers for TLS 1.2; those of TLS 1.3 are always on in both.
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_DEAREST = 18
"""Highest cost of a bcrypt hash: each step doubles the work, and 18 takes seconds."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificate, key and what clients must show. `cert` and `key` are PEM texts where no files are named."""

    cert_file: str = ""
    key_file: str = ""
    cert: str = ""
    key: str = field(default="", repr=False)
    client_auth: str = "NoClientCert"
    client_ca_file: str = ""
    client_ca: str = ""
    allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    curve: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is read."""
        return tuple(name for name in (self.cert_file, self.key_file, self.client_ca_file) if name)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How the server is reached. `users` are bcrypt hashes by name; `rate` is (seconds between requests, burst)."""

    tls: TlsConfig | None = None
    users: dict[str, str] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    rate: tuple[float, int] | None = None


def load_web_config(path: str | Path) -> WebConfig:
    """Read a web-configuration file.

    Raises:
        ConfigError: It cannot be read, is not YAML, or holds an unknown key or a wrong value; one line.
    """
    file = YamlFile(Path(path))
    root = file.root()
    config = _read(file, root) if root is not None else WebConfig()
    if file.problems:
        others = len(file.problems) - 1
        more = f" (and {others} more problem{'s' if others > 1 else ''})" if others else ""
        raise ConfigError(f"{file.problems[0]}{more}".replace("rule files are UTF-8", "allowed: a UTF-8 YAML file"))
    return config


def _read(file: YamlFile, root: Node) -> WebConfig:
    parts = file.mapping(root, "a web configuration", ROOT_KEYS)
    tls_node = parts.get("tls_server_config")
    return WebConfig(
        tls=_tls(file, tls_node) if tls_node is not None else None,
        users=_users(file, parts.get("basic_auth_users")),
        headers=_headers(file, parts.get("http_server_config")),
        rate=_rate(file, parts.get("rate_limit")),
    )


def _tls(file: YamlFile, node: Node) -> TlsConfig | None:
    what = "tls_server_config"
    parts = file.mapping(node, what, TLS_KEYS)
    texts = {
        key: file.text(parts.get(key), key) or ""
        for key in TLS_KEYS
        if key not in ("client_allowed_sans", "cipher_suites", "curve_preferences")
    }
    if not any(texts.values()):
        return None  # as in the toolkit, an empty part means: no TLS
    for one, other in (("cert", "cert_file"), ("key", "key_file"), ("client_ca", "client_ca_file")):
        if texts[one] and texts[other]:
            file.refuse(node, f"{what}: {one} and {other} exclude each other")
    for one, other in (("cert_file", "cert"), ("key_file", "key")):
        if not texts[one] and not texts[other]:
            file.refuse(node, f"{what}: {one} is missing")
    _choice(file, parts.get("client_auth_type"), texts["client_auth_type"], CLIENT_AUTH, "client_auth_type")
    for key in ("min_version", "max_version"):
        _choice(file, parts.get(key), texts[key], VERSIONS, key)
    _choice(file, parts.get("prefer_server_cipher_suites"), texts["prefer_server_cipher_suites"], ("true", "false"),
            "prefer_server_cipher_suites")  # fmt: skip
    config = TlsConfig(
        cert_file=_path(file, texts["cert_file"]),
        key_file=_path(file, texts["key_file"]),
        cert=texts["cert"],
        key=texts["key"],
        client_auth=texts["client_auth_type"] or "NoClientCert",
        client_ca_file=_path(file, texts["client_ca_file"]),
        client_ca=texts["client_ca"],
        allowed_sans=_names(file, parts.get("client_allowed_sans"), "client_allowed_sans", None),
        min_version=texts["min_version"] or "TLS12",
        max_version=texts["max_version"] or "TLS13",
        ciphers=_names(file, parts.get("cipher_suites"), "cipher_suites", (*CIPHERS, *TLS13_CIPHERS)),
        curve=(*_names(file, parts.get("curve_preferences"), "curve_preferences", tuple(CURVES)), "")[0],
    )
    _check_clients(file, node, config)
    return config


def _check_clients(file: YamlFile, node: Node, tls: TlsConfig) -> None:
    """Refuse what would let anybody in although certificates are asked for."""
    authority = tls.client_ca_file or tls.client_ca
    if {tls.min_version, tls.max_version} <= set(VERSIONS) and tls.min_version > tls.max_version:
        file.refuse(node, f"min_version {tls.min_version} is above max_version {tls.max_version}")
    if tls.client_auth in _UNVERIFIED:
        file.refuse(node, f"client_auth_type {tls.client_auth} checks nothing and is not supported; "
                          "allowed are: NoClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert")  # fmt: skip
    elif tls.client_auth == "NoClientCert" and authority:
        file.refuse(node, "client_ca_file is given although client_auth_type is NoClientCert; allowed is: "
                          "RequireAndVerifyClientCert")  # fmt: skip
    elif tls.client_auth != "NoClientCert" and not authority:
        file.refuse(node, f"client_auth_type {tls.client_auth} needs client_ca_file")
    if tls.allowed_sans and tls.client_auth != "RequireAndVerifyClientCert":
        file.refuse(node, "client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")


def _users(file: YamlFile, node: Node | None) -> dict[str, str]:
    users = file.texts(node, "basic_auth_users")
    for name, hashed in users.items():
        match = _BCRYPT.fullmatch(hashed)
        if match is None:
            file.refuse(node, f"the password of {name!r} is no bcrypt hash; `htpasswd -nBC 10 {name}` makes one")
        elif not 4 <= int(match[1]) <= _DEAREST:
            file.refuse(node, f"the bcrypt cost of {name!r} is {int(match[1])}; allowed: 4 to {_DEAREST}")
        if ":" in name or not name:
            file.refuse(node, f"the user name {name!r} is empty or has a colon, which no client can send")
    return users


def _headers(file: YamlFile, node: Node | None) -> tuple[tuple[str, str], ...]:
    if node is None:
        return ()
    parts = file.mapping(node, "http_server_config", ("http2", "headers"))
    _choice(file, parts.get("http2"), file.text(parts.get("http2"), "http2") or "", ("true", "false"), "http2")
    listed = parts.get("headers")
    if listed is None:
        return ()
    found = []
    for name, value_node in file.mapping(listed, "headers", HEADERS).items():
        value = file.text(value_node, name) or ""
        if not value.isprintable() or not value.isascii():
            file.refuse(value_node, f"{name}: the value must be one line of plain ASCII")
        _choice(file, value_node, value, _HEADER_VALUES.get(name, (value,)), name)
        if value:
            found.append((name, value))
    return tuple(found)


def _rate(file: YamlFile, node: Node | None) -> tuple[float, int] | None:
    if node is None:
        return None
    parts = file.mapping(node, "rate_limit", ("interval", "burst"))
    interval = file.duration(parts.get("interval"), "interval") or 0
    text = file.text(parts.get("burst"), "burst") or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        file.refuse(parts.get("burst"), f"burst is {text[:20]!r}; allowed: a whole number from 1 to 1000000")
        return None
    return (interval / 1000, int(text)) if interval else None


def _choice(file: YamlFile, node: Node | None, value: str, allowed: tuple[str, ...], what: str) -> None:
    if value and value not in allowed:
        file.refuse(node, f"{what} is {value[:40]!r}; allowed are: {', '.join(allowed)}")


def _names(file: YamlFile, node: Node | None, what: str, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
    names = []
    for item in file.items(node, what):
        name = file.text(item, what) or ""
        if allowed is not None:
            _choice(file, item, name, allowed, what)
        names.append(name)
    return tuple(names)


def _path(file: YamlFile, name: str) -> str:
    """Return a path as it is found from the folder of the file."""
    return str(file.path.parent / Path(name).expanduser()) if name else ""
