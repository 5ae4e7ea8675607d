"""A Prometheus and Alertmanagers in the configuration."""

from __future__ import annotations

import pytest

from gpuwatch.config import ConfigError, EndpointConfig, PrometheusConfig, load


def read(tmp_path, text):
    file = tmp_path / "gpuwatch.toml"
    file.write_text(text)
    return load(file)


def test_every_key_is_read(tmp_path):
    config = read(
        tmp_path,
        """
        [prometheus]
        url = "https://prom:9090/prefix/"
        user = "u"
        password_file = "p"
        ca_file = "ca"
        cert_file = "c"
        key_file = "k"
        verify = false
        timeout = 5
        headers = {X-Scope-OrgID = "team", B = "2"}
        matchers = {cluster = "east"}
        cluster_label = "k8s_cluster"

        [[alertmanager]]
        url = "am:9093"
        token_env = "T"

        [[alertmanager]]
        url = "https://am2"
        """,
    )
    endpoint = EndpointConfig(
        "https://prom:9090/prefix", user="u", password_file="p", ca_file="ca", cert_file="c", key_file="k",
        verify=False, timeout=5.0, headers=(("B", "2"), ("X-Scope-OrgID", "team")),
    )  # fmt: skip
    assert config.prometheus == PrometheusConfig(endpoint, (("cluster", "east"),), "k8s_cluster")
    assert config.alertmanagers == (EndpointConfig("http://am:9093", token_env="T"), EndpointConfig("https://am2"))


def test_without_the_sections_there_is_none(tmp_path):
    config = read(tmp_path, "")
    assert (config.prometheus, config.alertmanagers) == (None, ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[prometheus]\nuser = 'u'", "prometheus: key 'url' is missing"),
        ("[prometheus]\nurl = 'ftp://h'", "prometheus 'ftp://h': allowed: http://HOST:PORT"),
        ("[prometheus]\nurl = 'http://u:p@h'", "no user or password in the address"),
        ("[prometheus]\nurl = 'http://h?x=1'", "no query in the address"),
        ("[prometheus]\nurl = 'http://h:x'", "prometheus: "),
        ("[prometheus]\nurl = 'http://h'\ntoken = 'x'", "prometheus: unknown key 'token'; allowed: url, user"),
        ("[prometheus]\nurl = 'http://h'\ntimeout = 0", "key 'timeout' is 0; allowed: a number from 0.1 to 300"),
        ("[prometheus]\nurl = 'http://h'\nheaders = {A = 1}", "allowed: a table of names and strings"),
        ('[prometheus]\nurl = "http://h"\nheaders = {A = "x\\r\\nB: y"}', "allowed: a table of names and strings"),
        ("[prometheus]\nurl = 'http://h'\nmatchers = {'a-b' = 'x'}", "'a-b' is no label name"),
        ("[prometheus]\nurl = 'http://h'\ncluster_label = '1'", "allowed: a label name"),
        ("[[prometheus]]\nurl = 'http://h'", "one table written as [prometheus]"),
        ("[alertmanager]\nurl = 'http://h'", "tables written as [[alertmanager]]"),
        ("[[alertmanager]]\nurl = 'http://h'\n[[alertmanager]]\n", "alertmanager 2: key 'url' is missing"),
        ("[[alertmanager]]\nurl = 'http://h'\nmatchers = {}", "alertmanager 1: unknown key 'matchers'"),
    ],
)
def test_a_wrong_section_is_refused_with_file_key_and_what_is_allowed(tmp_path, text, why):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "gpuwatch.toml"))
    assert why in message
    assert "\n" not in message
