from __future__ import annotations

import ssl

import pytest
from unit.exporter.conftest import USERS

from gpuwatch.config import ConfigError
from gpuwatch.exporter import tls
from gpuwatch.exporter.access import Bucket, Passwords
from gpuwatch.exporter.webconfig import TlsConfig, WebConfig, load_web_config

FILES = "cert_file: a.pem\n  key_file: a.key\n"


def write(folder, text):
    path = folder / "web.yml"
    path.write_text(text)
    return path


def test_an_empty_file_asks_for_nothing(tmp_path):
    assert load_web_config(write(tmp_path, "# nothing\n")) == WebConfig()
    assert load_web_config(write(tmp_path, "tls_server_config: {}\nbasic_auth_users:\n")) == WebConfig()


def test_every_key_of_the_toolkit_is_understood(tmp_path):
    config = load_web_config(
        write(
            tmp_path,
            "tls_server_config:\n"
            "  cert_file: tls/a.pem\n  key_file: /k/a.key\n  client_auth_type: RequireAndVerifyClientCert\n"
            "  client_ca_file: ca.pem\n  client_allowed_sans: [a.example, 10.0.0.1]\n"
            "  min_version: TLS12\n  max_version: TLS13\n  prefer_server_cipher_suites: true\n"
            "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"
            "  curve_preferences: [X25519, CurveP256]\n"
            "http_server_config:\n  http2: true\n  headers:\n    Strict-Transport-Security: max-age=1\n"
            "    X-XSS-Protection: ''\n"
            f"basic_auth_users:\n  alice: {USERS['alice']}\n"
            "rate_limit:\n  interval: 1s500ms\n  burst: 20\n",
        )
    )
    assert config.tls == TlsConfig(
        cert_file=str(tmp_path / "tls/a.pem"),
        key_file="/k/a.key",
        client_auth="RequireAndVerifyClientCert",
        client_ca_file=str(tmp_path / "ca.pem"),
        allowed_sans=("a.example", "10.0.0.1"),
        ciphers=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        curve="X25519",
    )
    assert config.users == {"alice": USERS["alice"]}
    assert config.headers == (("Strict-Transport-Security", "max-age=1"),)
    assert config.rate == (1.5, 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_config: {}", "1: unknown key 'tls_config' in a web configuration; allowed are: tls_server_config, "),
        ("tls_server_config:\n  cert: x\n  cert_files: x", "3: unknown key 'cert_files' in tls_server_config"),
        ("- a", "1: a web configuration must be a mapping of keys to values, not a list"),
        ("a: [", "is not valid YAML"),
        ("tls_server_config:\n  cert_file: a.pem", "2: tls_server_config: key_file is missing"),
        ("tls_server_config:\n  key_file: a.key", "2: tls_server_config: cert_file is missing"),
        (f"tls_server_config:\n  {FILES}  cert: x", "2: tls_server_config: cert and cert_file exclude each other"),
        (f"tls_server_config:\n  {FILES}  min_version: TLS10", "4: min_version is 'TLS10'; allowed are: TLS12, TLS13"),
        (f"tls_server_config:\n  {FILES}  min_version: TLS19", "4: min_version is 'TLS19'; allowed are: TLS12, TLS13"),
        (
            f"tls_server_config:\n  {FILES}  min_version: TLS19\n  max_version: TLS20",
            "4: min_version is 'TLS19'; allowed are: TLS12, TLS13 (and 1 more problem)",
        ),
        (
            f"tls_server_config:\n  {FILES}  min_version: TLS13\n  max_version: TLS12",
            "min_version TLS13 is above max_version TLS12",
        ),
        (f"tls_server_config:\n  {FILES}  cipher_suites: [RC4]", "4: cipher_suites is 'RC4'; allowed are: "),
        (f"tls_server_config:\n  {FILES}  curve_preferences: [P1]", "4: curve_preferences is 'P1'; allowed are: "),
        (f"tls_server_config:\n  {FILES}  client_auth_type: Maybe", "4: client_auth_type is 'Maybe'; allowed are: "),
        (f"tls_server_config:\n  {FILES}  client_auth_type: RequireAnyClientCert", "checks nothing and is"),
        (f"tls_server_config:\n  {FILES}  client_auth_type: RequireAndVerifyClientCert", "needs client_ca_file"),
        (f"tls_server_config:\n  {FILES}  client_ca_file: ca.pem", "although client_auth_type is NoClientCert"),
        (f"tls_server_config:\n  {FILES}  client_allowed_sans: [a]", "needs client_auth_type RequireAnd"),
        ("basic_auth_users:\n  alice: secret", "the password of 'alice' is no bcrypt hash; `htpasswd -nBC 10 alice`"),
        (f"basic_auth_users:\n  a: $2y$31${USERS['alice'][7:]}", "the bcrypt cost of 'a' is 31; allowed: 4 to 18"),
        (f"basic_auth_users:\n  'a:b': {USERS['alice']}", "the user name 'a:b' is empty or has a colon"),
        (f"basic_auth_users:\n  a: {USERS['bob']}\n  a: {USERS['bob']}", "'a' is given twice"),
        ("http_server_config:\n  headers:\n    X-Powered-By: a", "3: unknown key 'X-Powered-By' in headers"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: maybe", "allowed are: deny, sameorigin"),
        ('http_server_config:\n  headers:\n    Content-Security-Policy: "a\\r\\nB: c"', "one line of plain ASCII"),
        ("rate_limit:\n  interval: soon", "2: interval: 'soon' is not a duration"),
        ("rate_limit:\n  interval: 1s\n  burst: many", "3: burst is 'many'; allowed: a whole number from 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_file_line_and_what_is_allowed(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_web_config(path)
    assert str(error.value).startswith(f"{path}:")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.yml: cannot be read: No such file or directory"):
        load_web_config(tmp_path / "no.yml")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"cert_file": "no.pem"}, "cert_file {folder}/no.pem: No such file or directory"),
        ({"key_file": "no.key"}, "key_file {folder}/no.key: No such file or directory"),
        ({"cert_file": "."}, "cert_file {folder}/.: is no regular file"),
        ({"cert_file": "index.txt"}, "{folder}/index.txt: holds no certificate in PEM form"),
        ({"cert_file": "server.key"}, "{folder}/server.key: holds no certificate in PEM form"),
        ({"key_file": "serial"}, "{folder}/serial: holds no private key in PEM form"),
        ({"key_file": "other.key"}, "{folder}/other.key: is not the key of {folder}/server.pem"),
        (
            {"client_ca_file": "serial", "client_auth": "RequireAndVerifyClientCert"},
            "{folder}/serial: holds no certificate in PEM form",
        ),
        (
            {"client_ca_file": "no.pem", "client_auth": "RequireAndVerifyClientCert"},
            "client_ca_file {folder}/no.pem: No such file or directory",
        ),
    ],
)
def test_a_bad_certificate_or_key_names_the_file_and_what_is_wrong(tls_folder, files, message):
    paths = {
        key: value if key == "client_auth" else f"{tls_folder}/{value}"
        for key, value in {"cert_file": "server.pem", "key_file": "server.key", **files}.items()
    }
    with pytest.raises(ConfigError) as error:
        tls.make_context(TlsConfig(**paths))
    assert str(error.value) == message.format(folder=tls_folder)


def test_a_key_with_a_password_is_refused_instead_of_asking_on_the_terminal(tls_folder, tmp_path):
    from unit.exporter.conftest import openssl  # noqa: PLC0415  # only here

    locked = tmp_path / "locked.key"
    openssl("ec", "-in", tls_folder / "server.key", "-aes256", "-passout", "pass:x", "-out", locked, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"locked\.key: the key is protected by a password; allowed: a key without"):
        tls.make_context(TlsConfig(cert_file=f"{tls_folder}/server.pem", key_file=str(locked)))


def test_certificate_and_key_may_stand_in_the_file_itself(tls_folder, tmp_path):
    def indented(name):
        return "".join(f"    {line}\n" for line in (tls_folder / name).read_text().splitlines())

    text = f"tls_server_config:\n  cert: |\n{indented('server.pem')}  key: |\n{indented('server.key')}"
    config = load_web_config(write(tmp_path, text))
    assert config.tls.files == ()
    assert isinstance(tls.make_context(config.tls), ssl.SSLContext)
    assert "PRIVATE KEY" not in repr(config)


def test_an_expired_certificate_is_said_with_its_date(tls_folder):
    expired = TlsConfig(cert_file=f"{tls_folder}/expired.pem", key_file=f"{tls_folder}/expired.key")
    end = 1612325100.0  # 2021-02-03 04:05:00 UTC
    begin, found = tls.certificate_times(expired)
    assert found == end
    assert tls.validity_warning(expired, end - 1) == tls.validity_warning(expired, begin) == ""
    assert "expired.pem: is not valid before 20" in tls.validity_warning(expired, begin - 1)
    assert tls.validity_warning(expired, end) == (
        f"{tls_folder}/expired.pem: expired on 2021-02-03 04:05 UTC; clients that check it refuse to connect"
    )


def test_versions_and_ciphers_reach_the_context(tls_folder):
    files = {"cert_file": f"{tls_folder}/server.pem", "key_file": f"{tls_folder}/server.key"}
    context = tls.make_context(
        TlsConfig(**files, min_version="TLS13", ciphers=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), curve="CurveP256")
    )
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    names = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"}
    assert names == {"ECDHE-ECDSA-AES128-GCM-SHA256"}


@pytest.mark.parametrize(
    ("sans", "allowed"),
    [((), True), (("a.example",), True), (("10.0.0.1",), True), (("x@y",), True), (("b.example", "A.example"), False)],
)
def test_names_of_client_certificates(sans, allowed):
    certificate = {"subjectAltName": (("DNS", "a.example"), ("IP Address", "10.0.0.1"), ("email", "x@y"))}
    assert tls.allowed_client(certificate, sans) is allowed
    assert tls.allowed_client(None, sans) is (sans == ())


def test_passwords_are_remembered_only_when_they_were_right():
    passwords = Passwords(USERS)
    assert not passwords.remembered("alice", "secret")
    assert not passwords.check("alice", "wrong")
    assert not passwords.remembered("alice", "wrong")
    assert passwords.check("alice", "secret")
    assert passwords.remembered("alice", "secret")
    assert not passwords.remembered("alice", "secre")
    assert not passwords.check("alice", "x" * 100)
    assert not Passwords({}).needed


def test_a_bucket_gives_its_burst_and_then_one_per_interval():
    bucket = Bucket((2.0, 3), now=10.0)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(11.9), bucket.take(12.0), bucket.take(12.1)] == [False, True, False]
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]
    assert all(Bucket(None, 0.0).take(0.0) for _ in range(1000))
