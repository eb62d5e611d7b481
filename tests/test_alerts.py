"""docs/operate: the real Prometheus reads the metrics, alert rules fire for what they say, the dashboard is true."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from delayedq import metrics
from delayedq.conf import Settings
from delayedq.operations.backlogs import IN_TURN, Backlog
from delayedq.worker.tally import Counts
from tests.app import tasks
from tests.missing import missing
from tests.store.given import message
from tests.worker.conftest import eventually

OPERATE = Path(__file__).parents[1] / "docs" / "operate"
RULES = OPERATE / "alerts.yml"
#: By alert: what makes it fire, as series of Prometheus's own tests, at minute 10 or at what it waits for.
FIRING = {
    "DelayedqDatabaseDown": {'delayedq_up{database="d"}': "0x90"},
    "DelayedqNotScraped": {'delayedq_up{database="d"}': "1x60 _x20"},
    "DelayedqNoWorker": {
        'delayedq_workers{database="d"}': "0x90",
        'delayedq_due{database="d",queue="q",task="t"}': "3x90",
    },
    "DelayedqQueueLate": {'delayedq_oldest_due_seconds{database="d",queue="q"}': "90x90"},
    "DelayedqLimitedLong": {'delayedq_oldest_limited_seconds{database="d",queue="q"}': "3700x90"},
    "DelayedqFailures": {
        'delayedq_messages_ended_total{database="d",queue="q",task="t",outcome="failed",instance="i"}': "0+5x90"
    },
    "DelayedqLeasesLost": {'delayedq_lease_losses_total{database="d",queue="q",task="t",instance="i"}': "0+1x90"},
    "DelayedqThreadsLost": {'delayedq_worker_threads_lost{database="d",instance="i"}': "1x90"},
    "DelayedqCronLate": {'delayedq_cron_late_seconds{database="d"}': "300x90"},
    "DelayedqHistoryGrows": {'delayedq_history_oldest_seconds{database="d"}': "2700000x90"},
    "DelayedqArchiveStuck": {'delayedq_archive_open_seconds{database="d"}': "90000x90"},
}


@pytest.fixture
def promtool():
    if shutil.which("promtool") is None:
        missing("prometheus")

    def check(*arguments):
        return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)

    return check


def test_every_rule_is_tried(promtool):
    assert set(re.findall(r"alert: (\w+)", RULES.read_text())) == set(FIRING)
    assert f"SUCCESS: {len(FIRING)} rules found" in promtool("check", "rules", RULES).stdout


@pytest.mark.parametrize("alert", FIRING)
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "silent"])
def test_a_rule_fires_for_what_it_says_and_not_otherwise(promtool, tmp_path, alert, fires):
    quiet = {"delayedq_up": "1x90", "delayedq_workers": "1x90"}
    series = [
        {"series": name, "values": values if fires else quiet.get(name.partition("{")[0], "0x90")}
        for name, values in FIRING[alert].items()
    ]
    found = promtool("test", "rules", _trial(tmp_path, alert, series))

    assert (alert in found.stdout + found.stderr) == fires, found.stdout + found.stderr
    assert (found.returncode == 0) != fires


@pytest.mark.parametrize("alert", ["DelayedqFailures", "DelayedqLeasesLost"])
@pytest.mark.parametrize(
    ("values", "fires"),
    [
        ("_x75 500x15", True),  # a counter appears with its first event
        ("500x20 _x50 500x20", True),  # and anew when its process was replaced
        ("_x55 500x35", False),
        ("500x90", False),
        ("500x70 505x2 515x18", True),
    ],
)
def test_events_count_that_came_with_their_counter(promtool, tmp_path, alert, values, fires):
    ((name, _),) = FIRING[alert].items()
    found = promtool("test", "rules", _trial(tmp_path, alert, [{"series": name, "values": values}]))

    assert (alert in found.stdout + found.stderr) == fires, found.stdout + found.stderr


def test_messages_of_a_bare_queue_need_no_worker(promtool, tmp_path):
    series = [
        {"series": 'delayedq_workers{database="d"}', "values": "0x90"},
        {"series": 'delayedq_due{database="d",queue="contacts|json",task=""}', "values": "3x90"},
    ]

    assert promtool("test", "rules", _trial(tmp_path, "DelayedqNoWorker", series)).returncode == 0


def test_a_history_that_is_pruned_is_no_alert(promtool, tmp_path):
    """Prunes run once a minute, so its age goes a little beyond RETENTION."""
    pruned = Settings().RETENTION + timedelta(hours=12)
    series = {"series": 'delayedq_history_oldest_seconds{database="d"}', "values": f"{pruned.total_seconds():.0f}x90"}

    assert promtool("test", "rules", _trial(tmp_path, "DelayedqHistoryGrows", [series])).returncode == 0


def _trial(directory, alert, series):
    """A file of Prometheus's own tests that expects no alert: its failure prints what fires."""
    asked = {"eval_time": "80m", "alertname": alert, "exp_alerts": []}
    path = directory / "trial.json"
    trial = {"interval": "1m", "input_series": series, "alert_rule_test": [asked]}
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [trial]}))
    return path


@pytest.mark.slow
def test_prometheus_reads_the_metrics_and_its_alerts_fire(store, promtool, tmp_path):
    """What the alerts look at is read from the database of the test."""
    store.offer(message(scheduled_at=store.now() - timedelta(minutes=5), queue="late", kind=tasks.echo.module_path))
    metrics._cache.clear()
    registry = CollectorRegistry()
    registry.register(metrics.Collector())
    with _prometheus(tmp_path, [registry]) as port:
        eventually(lambda: {"DelayedqNoWorker", "DelayedqQueueLate"} <= _firing(port))
        assert _asked(port, 'delayedq_due{queue="late"}')[0]["value"][1] == "1"


@contextmanager
def _prometheus(directory, exported):
    """The port of a server that reads these registries and the rules, whose alerts do not wait."""
    (directory / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 0s", RULES.read_text()))
    servers = [start_http_server(0, "127.0.0.1", registry) for registry in exported]
    targets = json.dumps([f"127.0.0.1:{server.server_port}" for server, _ in servers])
    (directory / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{directory}/alerts.yml]
scrape_configs: [{{job_name: delayedq, static_configs: [{{targets: {targets}}}]}}]
""")
    port = _free_port()
    prometheus = subprocess.Popen(
        ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield port
    finally:
        prometheus.terminate()
        prometheus.wait()
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join()


def _firing(port):
    return {one["metric"]["alertname"] for one in _asked(port, 'ALERTS{alertstate="firing"}')}


def _asked(port, expression):
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(expression)}", timeout=5) as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


# The dashboard


def panels():
    """Titles and expressions."""
    for panel in json.loads((OPERATE / "grafana.json").read_text())["panels"]:
        yield panel["title"], [target["expr"].replace("$__rate_interval", "5m") for target in panel["targets"]]


def expressions():
    return [text for _, asked in panels() for text in asked]


class Exporter:
    """One of several, of one database and with workers of its own, that have done more at each scrape."""

    def __init__(self):
        names, more = ("d", "q", "t"), Counter({("q", "t"): 3})
        self.found = Backlog(due=more, dead=more, limited=Counter(q=1), channels=Counter({("q", IN_TURN): 2}))
        self.found.oldest, self.found.oldest_limited, self.found.workers = {"q": 5.0}, {"q": 5.0}, 2
        self.counts = Counts()
        self.counts.gauges.update({(name, "d"): 2 for name, *_ in metrics.GAUGES})
        self.more = [(name, *(*names, "failed")[: len(labels)]) for name, _, _, labels in metrics.COUNTERS]
        self.observed = [(name, *names[: len(labels)]) for name, _, labels in metrics.HISTOGRAMS]

    def collect(self):
        self.counts.counters.update(self.more)
        for key in self.observed:
            self.counts.observe(key, 1.0)
        yield from metrics._of_databases({"d": self.found})
        yield from metrics.of_workers(self.counts)


@pytest.mark.slow
def test_the_dashboard_shows_what_several_exporters_say_and_counts_the_database_once(promtool, tmp_path):
    registries = [CollectorRegistry(), CollectorRegistry()]
    for registry in registries:
        registry.register(Exporter())
    with _prometheus(tmp_path, registries) as port:
        eventually(lambda: [text for text in expressions() if not _asked(port, text)] == [])
        eventually(lambda: len(_asked(port, "delayedq_up")) == len(registries))
        shown = {title: [float(_asked(port, text)[0]["value"][1]) for text in asked] for title, asked in panels()}

    assert (shown["Due"], shown["Dead letters"], shown["Workers"]) == ([3.0], [3.0], [2.0])
    assert shown["Channels that have messages"] == [2.0]
    assert shown["Due without and with a limit or a channel"] == [2.0, 1.0]
    assert min(shown["Retries and lost leases per second"]) > 0.0


def test_every_expression_of_the_dashboard_is_one_for_prometheus(promtool, tmp_path):
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    found = promtool("check", "rules", tmp_path / "rules.json")

    assert f"SUCCESS: {len(rules)} rules found" in found.stdout, found.stderr


def test_dashboard_and_rules_name_only_metrics_that_there_are():
    known = {f"delayedq_{name}" for name, *_ in metrics.STATES} | {"delayedq_offers_total"}
    for family in metrics.of_workers(Counts()):
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        known |= {family.name + end for end in ends}
    used = set(re.findall(r"delayedq_\w+", " ".join(expressions()) + RULES.read_text()))

    assert used <= known
