"""docs/deploy: each command line is one that the real commands take, and what can be started here is started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml
from django.core.management import get_commands, load_command_class
from packaging.requirements import Requirement

from delayedq import metrics
from delayedq.worker.supervisor import FAREWELL, LAST_MOMENTS
from tests.missing import missing
from tests.worker.conftest import eventually

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
FILES = sorted(path for path in DEPLOY.iterdir() if path.is_file())


def words_of(value):
    """All lists of words in a YAML document."""
    if isinstance(value, dict):
        for one in value.values():
            yield from words_of(one)
    elif isinstance(value, list):
        if value and all(isinstance(word, str) for word in value):
            yield value
        for one in value:
            yield from words_of(one)


def command_lines(path):
    if path.suffix == ".yaml":
        yield from (words for document in yaml.safe_load_all(path.read_text()) for words in words_of(document))
        return
    text = path.read_text()
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    for whole in text.splitlines():
        line = re.sub(r"^(ExecStart\w*=|\w+: |RUN )", "", whole)
        if not line.startswith("#"):
            yield shlex.split(line.partition("  #")[0].partition(" #")[0]) if "'" not in line else []


ALL = [(path.name, words) for path in FILES for words in command_lines(path) if "manage.py" in words]


@pytest.mark.parametrize(("name", "words"), ALL, ids=lambda value: value if isinstance(value, str) else None)
def test_every_command_is_one(name, words):
    command, *arguments = words[words.index("manage.py") + 1 :]
    arguments = [word.replace("events", "default") for word in arguments]  # a database of that page
    load_command_class(get_commands()[command], command).create_parser("manage.py", command).parse_args(arguments)


def test_commands_are_in_all_files_that_start_something():
    have = {name for name, _ in ALL}

    assert have >= {
        *("README.md", "upgrades.md", "web.md", "compose.yaml", "kubernetes.yaml"),
        *("delayedq.service", "web.service", "Dockerfile", "Procfile"),
    }


@pytest.mark.parametrize("name", ["delayedq.service", "web.service"])
def test_systemd_takes_the_units(name, tmp_path):
    if not shutil.which("systemd-analyze"):
        missing("systemd")
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    text = re.sub(r"/srv/site/\.venv/bin/\w+", str(python), (DEPLOY / name).read_text()).replace("/srv/site", "/")
    (tmp_path / name).write_text(text.replace("User=site", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True, check=False
    )

    assert [line for line in done.stderr.splitlines() if name in line] == []


def test_the_times_leave_room_for_the_shutdown():
    """What the supervisor gives the workers, and then the lease keeper."""
    more = LAST_MOMENTS + FAREWELL
    pods = documents("kubernetes.yaml")[1]["spec"]["template"]["spec"]
    asked = int(re.search(r"--shutdown-timeout=(\d+)", " ".join(pods["containers"][0]["args"]))[1])
    unit = int(re.search(r"TimeoutStopSec=(\d+)", (DEPLOY / "delayedq.service").read_text())[1])
    composed = int(documents("compose.yaml")[0]["services"]["worker"]["stop_grace_period"].removesuffix("s"))

    assert pods["terminationGracePeriodSeconds"] > asked + more
    assert min(unit, composed) > 25 + more


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_compose_takes_the_file():
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stdout


def test_no_image_or_service_of_compose_is_like_another_by_mistake():
    """A key that is there twice is no error to YAML: the last one wins."""
    text = (DEPLOY / "compose.yaml").read_text()
    keys = re.findall(r"^  (\w+):$", text.split("services:")[1].split("volumes:\n  postgres")[0], re.MULTILINE)

    assert len(keys) == len(set(keys)) == len(documents("compose.yaml")[0]["services"])


def test_hadolint_has_nothing_to_say_of_the_dockerfile():
    program = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        missing("hadolint")
    said = subprocess.run([program, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (said.returncode, said.stdout) == (0, "")


def test_the_image_has_no_secrets_of_the_pages():
    """`COPY . .` takes whatever is there, and kubernetes.md has a file of secrets."""
    ignored = [line.removeprefix("**/") for line in (DEPLOY / ".dockerignore").read_text().splitlines()]
    (secrets,) = re.findall(r"--from-env-file=(\S+)", (DEPLOY / "kubernetes.md").read_text())

    assert any(fnmatch(secrets, pattern) for pattern in ignored)
    assert not any(fnmatch("delayedq-0.1.0-py3-none-any.whl", pattern) for pattern in ignored)


def test_kubernetes_takes_the_manifests():
    found = documents("kubernetes.yaml")
    for document in found:
        kubernetes_validate.validate(document, "1.31", strict=True)

    assert [document["kind"] for document in found] == [
        "Job", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler",
    ]  # fmt: skip


def test_what_the_manifests_name_is_there():
    """Ports of probes, labels of selectors, the target of KEDA, services that others wait for."""
    _, workers, budget, scaler = documents("kubernetes.yaml")
    (keda,) = documents("keda.yaml")
    pod, (compose,) = workers["spec"]["template"], documents("compose.yaml")
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    probes = [container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("liveness", "readiness", "startup")]
    assert probes == ["health"] * 3
    assert {f"--health-port={ports['health']}", f"--metrics-port={ports['metrics']}"} <= set(container["args"])
    labels = pod["metadata"]["labels"]
    assert labels == workers["spec"]["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"]
    targets = {scaler["spec"]["scaleTargetRef"]["name"], keda["spec"]["scaleTargetRef"]["name"]}
    assert targets == {workers["metadata"]["name"]}
    waited = {name for one in compose["services"].values() for name in one.get("depends_on", {})}
    assert waited <= set(compose["services"])
    assert set(compose["volumes"]) == {"postgres"}


def test_each_release_has_a_job_of_its_own_and_waits_for_it():
    job, workers, *_ = documents("kubernetes.yaml")
    images = {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in (job, workers)}
    said = (DEPLOY / "kubernetes.md").read_text()
    ((label, value),) = job["metadata"]["labels"].items()

    assert {f"migrate-{image.partition(':')[2]}" for image in images} == {job["metadata"]["name"]}
    assert f"job/{job['metadata']['name']}" in said
    assert f"--selector {label}={value}" in said


def test_one_pod_can_be_drained_and_an_apply_does_not_scale():
    _, workers, budget, _ = documents("kubernetes.yaml")

    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]
    assert "replicas" not in workers["spec"]


def test_scalers_take_the_maximum_of_what_each_pod_says():
    text = (DEPLOY / "kubernetes.yaml").read_text()
    values = re.search(r"^# rules:\n(#.*\n)+", text, re.MULTILINE)[0]
    (rule,) = yaml.safe_load(re.sub(r"^# ?", "", values, flags=re.MULTILINE))["rules"]["external"]
    asked = rule["metricsQuery"].replace("<<.Series>>{<<.LabelMatchers>>}", rule["seriesQuery"])

    assert asked == documents("keda.yaml")[0]["spec"]["triggers"][0]["metadata"]["query"]
    assert rule["name"]["as"] == documents("kubernetes.yaml")[3]["spec"]["metrics"][0]["external"]["metric"]["name"]


def test_what_the_environment_sets_is_read_by_the_example():
    said = re.search(r"example project reads (.*?)\.", (DEPLOY / "kubernetes.md").read_text())[1]
    names = {*re.findall(r"`(\w+)`", said)}
    read = set(re.findall(r'env\.\w+\("(\w+)"', (ROOT / "example_project" / "settings.py").read_text()))

    assert names == set(documents("compose.yaml")[0]["x-site"]["environment"]) <= read


def test_the_example_has_static_files_without_more_settings(tmp_path):
    """What the Dockerfile and web.service do."""
    own = {"STATIC_ROOT": str(tmp_path), "DJANGO_SETTINGS_MODULE": "example_project.settings"}
    words = [sys.executable, "manage.py", "collectstatic", "--no-input", "-v0"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | own, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "admin" / "css" / "base.css").exists()


def test_the_requirements_have_what_the_commands_and_the_example_need():
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    asked = [Requirement(line) for line in lines if not line.startswith("#")]
    extras = metadata.metadata("delayedq").get_all("Provides-Extra")

    assert asked[0].name == "delayedq"
    assert asked[0].extras <= set(extras)
    assert {one.name for one in asked} >= {"gunicorn", "whitenoise", "django-environ"}
    assert [one.name for one in asked if one.specifier and metadata.version(one.name) not in one.specifier] == []


def test_keda_takes_its_manifest():
    """By what its custom resource asks for; no package brings the schema."""
    (keda,) = documents("keda.yaml")
    spec, (trigger,) = keda["spec"], keda["spec"]["triggers"]
    assert (keda["apiVersion"], keda["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert {*spec} <= {
        *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount"),
        *("minReplicaCount", "maxReplicaCount", "advanced", "triggers", "fallback"),
    }
    assert all(isinstance(spec[name], int) for name in ("minReplicaCount", "maxReplicaCount", "cooldownPeriod"))
    assert trigger["type"] == "prometheus"
    assert {*trigger["metadata"]} == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes texts only"


def test_scalers_ask_for_the_metric_that_there_is_and_for_the_threads_of_a_pod():
    _, workers, _, scaler = documents("kubernetes.yaml")
    (keda,) = documents("keda.yaml")
    (metric,), (trigger,) = scaler["spec"]["metrics"], keda["spec"]["triggers"]
    asked = {metric["external"]["metric"]["name"], *re.findall(r"delayedq_\w+", trigger["metadata"]["query"])}
    arguments = " ".join(workers["spec"]["template"]["spec"]["containers"][0]["args"])
    threads = re.search(r"--threads=(\d+)", arguments)[1]

    assert asked == {"delayedq_threads_needed"} <= {family.name for family in metrics._of_databases({})}
    assert trigger["metadata"]["threshold"] == metric["external"]["target"]["averageValue"] == threads
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (
        keda["spec"]["minReplicaCount"], keda["spec"]["maxReplicaCount"],
    )  # fmt: skip


@pytest.fixture
def site(tmp_path):
    """The example project with the settings of web.md, migrated and with its static files."""
    (settings,) = re.findall(r"^```python\n(.*?)^```", (DEPLOY / "web.md").read_text(), re.MULTILINE | re.DOTALL)
    own = settings.replace('BASE_DIR / "static"', repr(str(tmp_path / "static")))
    (tmp_path / "deployed.py").write_text(f"from example_project.settings import *\n{own}")
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "deployed", "DATABASE_URL": f"sqlite:///{tmp_path}/site.sqlite3",
        "DEBUG": "false", "PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONWARNINGS": "default",
    }  # fmt: skip
    started = []

    def start(*words):
        words = [sys.executable if word == "python" else word for word in words]
        words = [sys.executable, "-m", *words] if words[0] in {"gunicorn", "uvicorn"} else words
        started.append(subprocess.Popen(words, cwd=ROOT, env=environment))
        return started[-1]

    assert start("python", "manage.py", "migrate", "--no-input", "-v0").wait() == 0
    assert start("python", "manage.py", "collectstatic", "--no-input", "-v0").wait() == 0
    yield start
    for one in started:
        if one.poll() is None:
            one.send_signal(signal.SIGTERM)
            one.wait(timeout=60)


def fetched(address):
    try:
        with urlopen(address, timeout=5) as answer:
            return answer.status
    except OSError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_the_web_server_has_pages_and_static_files(site, server):
    (line,) = [words for words in command_lines(DEPLOY / "web.md") if words[:1] == [server]]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    site(*(re.sub(r"\b800[01]$", str(port), word) for word in line))

    address = f"http://127.0.0.1:{port}"
    eventually(lambda: fetched(f"{address}/admin/login/") == 200)
    assert fetched(f"{address}/static/admin/css/base.css") == 200


@pytest.mark.slow
def test_the_worker_of_compose_is_healthy_and_stops(site, tmp_path):
    worker = documents("compose.yaml")[0]["services"]["worker"]
    _, probe = worker["healthcheck"]["test"]
    words = [word.replace("/tmp/worker", str(tmp_path / "worker")) for word in worker["command"]]
    one = site(*words)

    def is_healthy():
        said = ["sh", "-c", probe.replace("/tmp/worker", str(tmp_path / "worker"))]
        return subprocess.run(said, check=False, capture_output=True).returncode == 0

    eventually(is_healthy)
    one.send_signal(signal.SIGTERM)
    assert one.wait(timeout=45) == 0
