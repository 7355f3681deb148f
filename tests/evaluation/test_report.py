"""The report and the projector, read back: by parsers, and by a real browser where there is one."""

import base64
import dataclasses
import html.parser
import io
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers.subjects import full_subject
from helpers.tiny import tiny_config
from PIL import Image

from tfvmf import evaluation, training
from tfvmf.evaluation import Options, report
from tfvmf.evaluation.suites.probe import linear_probe, probe

OPTIONS = Options(max_images=60)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    training.train(tiny_config(epochs=1), workdir)
    return evaluation.subject_from_run(workdir)


@pytest.fixture(scope="module")
def page(run):
    names = ("curves", "probe", "failure", "projector")
    results = {name: evaluation.SUITES[name](run, OPTIONS) for name in names}
    path = evaluation.write_report(run, results, OPTIONS)
    assert path == run.workdir / "eval" / "report.html"
    return path


class Parser(html.parser.HTMLParser):
    """Collects what a page points to, and whether its tags close."""

    def __init__(self):
        super().__init__()
        self.addresses, self.open, self.text = [], [], []
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(key for key, _ in attrs)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_needs_nothing_else(page, run):
    parser = Parser()
    parser.feed(page.read_text(encoding="utf-8"))
    assert not parser.open
    assert all(a.startswith(("data:image/png;base64,", "#")) for a in parser.addresses)
    anchors = {a[1:] for a in parser.addresses if a.startswith("#")}
    assert anchors == set(re.findall(r'<h2 id="([^"]+)"', page.read_text()))
    text = " ".join(parser.text)
    for expected in ("Most certain", "Worst failures", "linear probe", "optimizer.learning_rate"):
        assert expected in text
    accuracy = probe(run, OPTIONS)["linear_accuracy"]
    assert f"{accuracy:.3f}" in text


def test_the_gallery_is_in_order_of_the_score(run):
    embeddings = run.embed(run.test, limit=60)
    kappa = embeddings["concentration"]
    most, least, wrong = report.choose_images(run, OPTIONS, shown=5).values()
    assert [p.caption for p in most] == [f"{v:.3g}" for v in np.sort(kappa)[::-1][:5]]
    assert [p.caption for p in least] == [f"{v:.3g}" for v in np.sort(kappa)[:5]]
    content = base64.b64decode(least[0].address.removeprefix("data:image/png;base64,"))
    shown = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(shown, run.test.images()[kappa.argmin()])
    predicted = linear_probe(run).predict(embeddings["features"])
    mistakes = predicted != run.test.labels[:60]
    assert wrong[0].caption.startswith(f"{kappa[mistakes].max():.3g}, said ")


def test_a_browser_shows_every_picture(page, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs a browser: apt install chromium")
    script = (
        "<script>onload = () => { document.title = 'broken ' + "
        "[...document.images].filter(i => !i.naturalWidth).length + ' of ' + "
        "document.images.length + ', wide ' + (document.body.scrollWidth > innerWidth) }</script>"
    )
    copy = tmp_path / "report.html"
    text, policy = page.read_text(), "Content-Security-Policy"
    # Without the policy the script counts pictures; with it, no script runs.
    copy.write_text(text.replace(policy, "unused").replace("</body>", f"{script}</body>"))
    guarded = tmp_path / "guarded.html"
    guarded.write_text(text.replace("</body>", f"{script}</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,900"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]

    def title(path):
        shown = subprocess.run(
            [*command, "--dump-dom", path.as_uri()],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return re.search("<title>(.*?)</title>", shown.stdout).group(1)

    count = page.read_text().count("<img ")
    assert title(copy) == f"broken 0 of {count}, wide false"
    assert "broken" not in title(guarded)


def test_the_projector_has_a_line_an_image(run, page):
    directory = run.directory_for("projector")
    directions = np.loadtxt(directory / "directions.tsv", delimiter="\t")
    np.testing.assert_allclose(
        directions, run.embed(run.test, limit=60)["mean_direction"], atol=1e-5
    )
    head, *lines = (directory / "metadata.tsv").read_text().splitlines()
    assert head.split("\t") == ["image", "kappa", "label"]
    assert len(lines) == 60
    number, kappa, label = lines[7].split("\t")
    assert float(kappa) == pytest.approx(
        run.embed(run.test, limit=60)["concentration"][7], rel=1e-4
    )
    assert (number, label) == ("7", str(run.test.labels[7]))
    sprite = np.asarray(Image.open(directory / "sprite.png"))
    assert sprite.shape == (64, 64, 3)  # 8 x 8 places of 8 x 8 pixels hold 60 images
    np.testing.assert_array_equal(sprite[8:16, 16:24], run.test.images(10, 11)[0])
    assert 'tensor_path: "directions.tsv"' in (directory / "projector_config.pbtxt").read_text()


NASTY = "<script>alert(1)</script>\"'><img src=http://evil.example/x.png onerror=alert(1)>"


def test_everything_from_data_files_and_configs_is_text(tmp_path):
    subject = full_subject(
        tmp_path,
        description=NASTY,
        settings={NASTY: NASTY, "data.source": NASTY},
        facts={"step": 3, "checkpoint": NASTY},
    )
    subject = dataclasses.replace(subject, name=NASTY)
    subject.test.name = NASTY
    subject.test.class_names = [f"{NASTY}{number}" for number in range(10)]
    results = {name: evaluation.SUITES[name](subject, OPTIONS) for name in ("probe", "projector")}
    results["projector"]["open"] = NASTY
    parser = Parser()
    text = report.render(
        subject, [(evaluation.SUITES[name], found) for name, found in results.items()], OPTIONS
    )
    parser.feed(text)
    assert not parser.open
    assert {"script", "iframe", "object"}.isdisjoint(parser.tags)
    assert not any(name.startswith("on") for name in parser.attributes)
    assert all(a.startswith(("data:image/png;base64,", "#")) for a in parser.addresses)
    shown = " ".join(parser.text)
    assert shown.count("<script>alert(1)</script>") >= 6  # as text, wherever it stands


def test_the_page_forbids_scripts_and_the_network(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page.read_text()).group(1)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "script-src" not in rules
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_the_template_never_switches_escaping_off():
    template = pathlib.Path(report.__file__).with_name("report.html.j2").read_text()
    for way_out in ("|safe", "| safe", "autoescape", "Markup"):
        assert way_out not in template
