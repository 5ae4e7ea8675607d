"""The evaluator against a real Prometheus 2.42, expression by expression, on the same awkward samples."""

from __future__ import annotations

import math
import subprocess

import numpy as np
import pytest
import yaml
from e2e.prometheus_server import PrometheusServer, binaries
from unit.promql.conformance import CASES, split

from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.remote import RemoteQuerier
from gpuwatch.promql.templates import parse as parse_template
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import Store

BASE = 1_790_000_000_000
SECONDS = 600
RELATIVE = 1e-9

WINDOWED = [
    "rate(req_total[{w}])",
    "increase(req_total[{w}])",
    "irate(req_total[{w}])",
    "resets(req_total[{w}])",
    "changes(req_total[{w}])",
    "delta(kv[{w}])",
    "idelta(kv[{w}])",
    "deriv(kv[{w}])",
    "predict_linear(kv[{w}], 60)",
    "sum_over_time(kv[{w}])",
    "avg_over_time(kv[{w}])",
    "min_over_time(kv[{w}])",
    "max_over_time(kv[{w}])",
    "count_over_time(kv[{w}])",
    "last_over_time(kv[{w}])",
    "stddev_over_time(kv[{w}])",
    "stdvar_over_time(kv[{w}])",
    "present_over_time(kv[{w}])",
    "quantile_over_time(0.9, kv[{w}])",
    'absent_over_time(req_total{{engine="9"}}[{w}])',
    "max_over_time(odd[{w}])",
    "min_over_time(odd[{w}])",
    "avg_over_time(odd[{w}])",
    "changes(odd[{w}])",
    "histogram_quantile(0.9, sum by (le) (rate(lat_bucket[{w}])))",
    "histogram_quantile(0.5, rate(lat_bucket[{w}]))",
    "sum by (instance) (rate(req_total[{w}]))",
    "avg without (engine) (avg_over_time(kv[{w}]))",
    "rate(req_total[{w}] offset 30s) > 1",
    "rate(req_total[{w}] offset -20s)",
    "max_over_time(rate(req_total[10s])[{w}:5s])",
    "avg_over_time((kv > 0.5)[{w}:7s] offset 13s)",
    "rate(req_total[{w}]) / ignoring (engine) group_left sum without (engine) (rate(req_total[{w}]))",
]
PLAIN = [
    "kv > lim",
    "kv > bool lim",
    "kv / lim",
    "kv ^ 2 % 0.3",
    "kv atan2 lim",
    "kv and on (instance) (lim > 0.6)",
    "kv unless lim > 0.6",
    "kv unless on (instance, engine) lim > 0.6",
    "kv or on (engine) lim",
    "kv * on (engine) group_left sum by (engine) (lim)",
    "sum by (engine) (lim) * on (engine) group_right (job) kv",
    "kv * on (engine, instance) group_left (mode) mode_info",
    "topk(2, kv)",
    "bottomk(1, kv)",
    "topk by (instance) (1, kv)",
    "topk(0, kv)",
    "quantile(0.5, kv)",
    "quantile by (instance) (1.5, kv)",
    "count by (engine) (kv > 0.5)",
    "stddev(kv)",
    "stdvar by (instance) (kv)",
    "group by (engine) (kv)",
    'count_values("v", lim)',
    'count_values without (engine) ("v", lim)',
    "sum(odd)",
    "avg by (instance) (odd)",
    "min(odd)",
    "max(odd)",
    "quantile(0.3, odd)",
    "sum(req_total) by (engine) / ignoring (job) sum(req_total) by (engine)",
    "-kv",
    "-(kv + lim)",
    "abs(kv - 0.5)",
    "sgn(kv - 0.5)",
    "sqrt(kv)",
    "exp(kv)",
    "ln(odd)",
    "log2(kv)",
    "log10(kv)",
    "ceil(kv * 10)",
    "floor(kv * -10)",
    "round(kv, 0.05)",
    "round(kv * 7)",
    "clamp(kv, 0.2, 0.8)",
    "clamp(kv, 0.8, 0.2)",
    "clamp_max(odd, 0.5)",
    "clamp_min(odd, 0.5)",
    'absent(nope{a="b"})',
    'absent(nope{a="b",a="c",d=~"e",f="g"})',
    "absent(kv)",
    "absent(sum(nope))",
    'label_replace(kv, "x", "$1-y", "instance", "(h.).*")',
    'label_replace(kv, "engine", "", "engine", "1")',
    'label_join(kv, "x", "/", "instance", "engine", "none")',
    "scalar(sum(kv))",
    "scalar(kv)",
    "vector(time())",
    "kv * scalar(max(lim))",
    "2 ^ -kv",
    "0.5 < kv",
    "0.5 >= bool kv",
    "kv == kv",
    "kv != 0",
    "odd == odd",
    "kv offset 1m",
    "kv offset 4m59s",
    "timestamp(kv)",
    "timestamp(kv offset 20s)",
    "timestamp(-kv)",
    "time() - timestamp(kv)",
    "kv or lim",
    'lat_bucket{le=~"0.*|1.0"}',
    'lat_bucket{le!~"0.*|1.0"}',
    '{__name__=~"kv|lim", engine!="1"}',
    'kv{nothing=""}',
    "sum(kv) > 3 or vector(0)",
    "sum(kv > 0.9) / count(kv)",
    "histogram_quantile(0, lat_bucket)",
    "histogram_quantile(1, lat_bucket)",
    "histogram_quantile(-1, lat_bucket)",
    "histogram_quantile(2, lat_bucket)",
    'histogram_quantile(0.5, lat_bucket{le!="+Inf"})',
    'histogram_quantile(0.5, label_replace(lat_bucket, "le", "0.50", "le", "1.0"))',
    "histogram_quantile(0.7, negative_bucket)",
    "hour()",
    "day_of_week(vector(time() + 86400 * 3))",
    "days_in_month(kv * 1e9)",
    "year(vector(1790000000)) + month(vector(1790000000)) + day_of_month(vector(1790000000))",
    "minute() + day_of_year()",
    "1 / 0",
    "-1 / 0 + 3",
    "0 / 0",
    "7 % -3",
    "2 ^ 3 ^ 2",
    "-2 ^ 2",
    "1 == bool 1",
    "pi()",
]
FAILING = [
    "kv + on (instance) lim",
    "kv * on (engine) group_left lim",
    "sum by (engine) (lim) * on (engine) kv",
    'abs({__name__=~"kv|lim", engine="1"})',
    '-{__name__=~"kv|lim"}',
    'label_replace(kv, "engine", "1", "engine", ".*")',
    "topk(0/0, kv)",
    'rate({__name__=~"kv|lim"}[1m])',
]
RANGES = [
    "kv",
    "kv offset 17s",
    "rate(req_total[30s])",
    "sum by (instance) (rate(req_total[1m]))",
    "kv > 0.5",
    "histogram_quantile(0.9, rate(lat_bucket[1m]))",
    "max_over_time(kv[1m:10s])",
    'absent(kv{engine="0"})',
    "time()",
    "topk(2, kv)",
    "kv unless lim > 0.6",
    "deriv(kv[1m])",
]
EXPRESSIONS = [text.format(w=window) for window in ("5s", "30s", "1m", "5m") for text in WINDOWED] + PLAIN


def _families(rng):
    """Yield (labels, times, values): three instances with their own jitter, counter resets, gaps, NaN, infinities."""
    for target in range(3):
        times = np.sort(BASE + np.arange(SECONDS) * 1000 + rng.integers(-80, 80, SECONDS))
        common = {"instance": f"h{target}:8000", "job": "vllm"}

        def gappy(labels, values, times=times):
            keep = rng.random(SECONDS) >= 0.06
            keep[200:260] = rng.random(60) >= 0.9
            return labels, times[keep], values[keep]

        for engine in ("0", "1", "2"):
            counter = np.cumsum(rng.integers(0, 5, SECONDS)).astype(float)
            for at in rng.integers(50, 550, 2):
                counter[at:] -= counter[at]
            yield gappy(series("req_total", engine=engine, **common), counter)
            yield gappy(series("kv", engine=engine, **common), rng.random(SECONDS).round(4))
            yield gappy(series("lim", engine=engine, **common), np.full(SECONDS, 0.5 + int(engine) / 10))
            odd = rng.normal(size=SECONDS).round(3)
            odd[rng.integers(0, SECONDS, 30)] = np.nan
            odd[rng.integers(0, SECONDS, 6)] = np.inf
            odd[rng.integers(0, SECONDS, 6)] = -np.inf
            yield gappy(series("odd", engine=engine, **common), odd)
            mode = series("mode_info", engine=engine, instance=common["instance"], mode=f"m{target}")
            yield gappy(mode, np.ones(SECONDS))
        count = np.zeros(SECONDS)
        for bound in ("0.1", "0.5", "1.0", "5.0", "+Inf"):
            count = count + np.cumsum(rng.integers(0, 3, SECONDS))
            yield gappy(series("lat_bucket", le=bound, **common), count.copy())
        for bound, share in (("-1", 0.25), ("0", 0.5), ("2", 0.75), ("+Inf", 1.0)):
            yield gappy(series("negative_bucket", le=bound, **common), np.arange(SECONDS) * share)


def _openmetrics(families):
    by_name = {}
    for labels, times, values in families:
        by_name.setdefault(dict(labels)["__name__"], []).append((labels, times, values))
    lines = []
    for name, members in sorted(by_name.items()):
        counter = name.endswith("_total")
        lines.append(f"# TYPE {name.removesuffix('_total')} {'counter' if counter else 'gauge'}")
        for labels, times, values in members:
            text = ",".join(f'{key}="{value}"' for key, value in labels if key != "__name__")
            for time, value in zip(times.tolist(), values.tolist(), strict=True):
                number = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
                lines.append(f"{name}{{{text}}} {number} {time / 1000:.3f}")
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def families():
    return list(_families(np.random.default_rng(7)))


@pytest.fixture(scope="module")
def prometheus(families, tmp_path_factory):
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), _openmetrics(families))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ours(families):
    store = Store(retention_ms=SECONDS * 1000, expected_interval_ms=900)
    for number, (labels, times, values) in enumerate(families):
        keys = (labels,)
        for time, value in zip(times.tolist(), values.tolist(), strict=True):
            store.append(str(number), time, keys, [value])
    return LocalQuerier(store, "2")


@pytest.fixture(scope="module")
def times():
    rng = np.random.default_rng(11)
    inside = (BASE + rng.integers(2000, (SECONDS + 280) * 1000, 36)).tolist()
    return [*inside, BASE + 1000, BASE + 60_000, BASE + 220_000, BASE + (SECONDS - 1) * 1000]


def _near(one, other):
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    if math.isinf(one) or math.isinf(other):
        return one == other
    return abs(one - other) <= max(RELATIVE * max(abs(one), abs(other)), 1e-15)


def _number(text):
    return float(text.replace("Inf", "inf"))


def _theirs(server, expr, time):
    answer = server.get("/api/v1/query", query=expr, time=f"{time / 1000:.3f}")
    if answer["status"] != "success":
        return "error"
    data = answer["data"]
    if data["resultType"] == "scalar":
        return {(): _number(data["result"][1])}
    return {tuple(sorted(one["metric"].items())): _number(one["value"][1]) for one in data["result"]}


def _mine(querier, expr, time):
    try:
        return dict(querier.instant(expr, time).items())
    except PromQLError:
        return "error"


def _agree(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)


def test_every_expression_gives_what_prometheus_gives(prometheus, ours, times):
    assert len(EXPRESSIONS) >= 130
    assert len(times) == 40
    differing = []
    shown = 0
    for expr in EXPRESSIONS:
        for time in times:
            mine, theirs = _mine(ours, expr, time), _theirs(prometheus, expr, time)
            shown += not isinstance(theirs, str) and len(theirs)
            if not _agree(mine, theirs):
                differing.append((expr, time - BASE, mine, theirs))
    assert not differing, f"{len(differing)} of {len(EXPRESSIONS) * len(times)} differ: {differing[:40]}"
    assert shown > 20_000


@pytest.mark.parametrize("expr", FAILING)
def test_what_fails_in_prometheus_fails_here(prometheus, ours, expr):
    time = BASE + 100_000
    assert _theirs(prometheus, expr, time) == "error"
    with pytest.raises(PromQLError):
        ours.instant(expr, time)


@pytest.mark.parametrize("expr", RANGES)
def test_range_queries_give_what_prometheus_gives(prometheus, ours, expr):
    start, end, step = BASE - 20_000, BASE + 900_000, 7_000
    answer = prometheus.get(
        "/api/v1/query_range", query=expr, start=f"{start / 1000:.3f}", end=f"{end / 1000:.3f}", step="7"
    )
    theirs = {
        (tuple(sorted(one["metric"].items())), round(float(at) * 1000)): _number(value)
        for one in answer["data"]["result"]
        for at, value in one["values"]
    }
    mine = {
        (one.labels, at): value
        for one in ours.range(expr, start, end, step)
        for at, value in zip(one.times, one.values, strict=True)
    }
    assert theirs
    assert _agree(mine, theirs)


@pytest.fixture
def remote(prometheus):
    querier = RemoteQuerier(prometheus.url)
    yield querier
    querier.close()


def test_the_remote_querier_reads_the_same_values(remote, ours):
    time = BASE + 300_000
    for expr in ("kv", "sum(rate(req_total[1m]))", "time()", "odd", "kv > 2"):
        assert _agree(dict(remote.instant(expr, time).items()), _mine(ours, expr, time))
    start, end = BASE + 100_000, BASE + 200_000
    local = {one.labels: one for one in ours.range("kv", start, end, 5000)}
    for one in remote.range("kv", start, end, 5000):
        assert one.times == local[one.labels].times
        assert one.values == local[one.labels].values
    with pytest.raises(PromQLError, match="parse error"):
        remote.instant("kv +", time)
    with pytest.raises(PromQLError, match="many-to-many"):
        remote.instant("kv + on (instance) lim", time)


@pytest.mark.parametrize("name", sorted({case.where.split(":")[0] for case in CASES}))
def test_the_conformance_cases_hold_in_promtool(name, tmp_path):
    cases = [case for case in CASES if case.where.startswith(f"{name}:") and case.word in ("eval", "eval2", "ordered")]
    tests = [
        {
            "expr": case.expr,
            "eval_time": f"{case.times[0]}ms",
            "exp_samples": [{"labels": metric, "value": float(value)} for metric, value in map(split, case.lines)],
        }
        for case in cases
        if not any(line.endswith(" NaN") for line in case.lines)  # to promtool NaN differs from NaN
    ]
    assert tests
    # promtool loads no sample behind the last evaluation, at which `@` may look.
    tests.append({"expr": "vector(1)", "eval_time": "1h", "exp_samples": [{"labels": "{}", "value": 1}]})
    group = {
        "interval": f"{cases[0].step}ms",
        "input_series": [{"series": metric, "values": values} for metric, values in cases[0].series],
        "promql_expr_test": tests,
    }
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [group]}))
    command = [binaries()[1], "test", "rules", path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


TEMPLATES = [
    "{{ $value }}",
    "{{ $value | humanize }}",
    "{{ $value | humanize1024 }}",
    "{{ $value | humanizePercentage }}",
    "{{ $value | humanizeDuration }}",
    '{{ printf "%.2f|%8.3e|%g|%-8.1f|%+.0f|%v" $value $value $value $value $value $value }}',
    '{{ printf "%d %s %5d|%-5s|%q" 7 $labels.host 42 "ab" "a\\"b" }}',
    '{{ printf "%d" $value }} {{ printf "%s" $value }} {{ printf "%d" }} {{ printf "%d" 1 2 }}',
    "{{ $labels.host | toUpper }} {{ .Labels.host | title }} {{ $labels.none }}|",
    "a {{- if gt $value 100.0 }} much {{- else if lt $value 0.0 }} less {{- else }} some {{- end }} b",
    '{{ query "up" | first | value }} {{ query "up" | first | label "i" }}',
    '{{ with query "up > 5" }}{{ . | first | value }}{{ else }}none{{ end }}',
    '{{ range sortByLabel "i" (query "up") }}{{ .Labels.i }}={{ .Value }} {{ end }}',
    '{{ $x := query "up" }}{{ len $x }} {{ (first $x).Value }} {{ index $labels "host" }}',
    '{{ reReplaceAll "(\\\\w+)-(\\\\d+)" "$2.$1" $labels.host }} {{ match "^n" $labels.host }}',
    '{{ if and (eq $labels.host "node-07") (not $labels.none) }}yes{{ end }}{{/* no */}}',
    "{{ print 1 2 `a` 3 }} {{ humanizeTimestamp 951831000 }} {{ 1.5e3 }} {{ -7 }} {{ true }}",
]
VALUES = ["0", "1", "-2.5", "1234.5678", "1000022", "0.00001234", "1e18", "86400 * 1.5", "0 / 0", "1 / 0", "-1 / 0"]


def test_templates_render_as_in_promtool(tmp_path):
    alerts, tests = [], []
    store = Store()
    store.append("t", 0, (series("up", i="a"),), [1.0])
    store.append("t", 60_000, (series("up", i="a"),), [1.0])
    querier = LocalQuerier(store, "2")
    labels = {"host": "node-07"}
    for number, value in enumerate(VALUES):
        texts = {f"a{at}": text for at, text in enumerate(TEMPLATES)}
        expr = f'label_replace(vector({value}), "host", "node-07", "", "")'
        alerts.append({"alert": f"A{number}", "expr": expr, "annotations": texts})
        (sample,) = querier.instant(expr, 60_000).values.tolist()
        ours = {name: parse_template(text).render(labels, sample, querier, 60_000) for name, text in texts.items()}
        expected = [{"exp_labels": labels, "exp_annotations": ours}]
        tests.append({"eval_time": "1m", "alertname": f"A{number}", "exp_alerts": expected})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": alerts}]}))
    group = {"interval": "1m", "input_series": [{"series": 'up{i="a"}', "values": "1 1"}], "alert_rule_test": tests}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [group]}))
    command = [binaries()[1], "test", "rules", path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
