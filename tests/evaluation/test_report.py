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

from tfvmf import evaluation, pages, training
from tfvmf.evaluation import Options, report
from tfvmf.evaluation.suites.probe import linear_probe

OPTIONS = Options(max_images=60)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    training.train(tiny_config(epochs=1), workdir)
    return evaluation.subject_from_run(workdir)


@pytest.fixture(scope="module")
def page(run):
    for name in ("images", "curves", "probe", "failure", "projector"):
        evaluation.SUITES[name](run, OPTIONS)
    path = evaluation.write_report(run.sample(60))
    assert path == run.workdir / "eval" / "sample60" / "report.html"
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
        if tag not in ("meta", "img", "br", "input"):
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
    assert "a sample of 60 of 400 images" in text
    assert {"details", "summary"} <= parser.tags  # tables are folded
    assert text.count(evaluation.probe(run, OPTIONS)["verdict"]) == 3  # on top, too
    accuracy = evaluation.probe(run, OPTIONS)["linear_accuracy"]
    assert f"{accuracy:.3f}" in text


def test_the_gallery_is_in_order_of_the_score(run, page):
    sample = run.sample(60)
    embeddings = sample.embed(sample.test)
    kappa = embeddings["concentration"]
    results = evaluation.images(run, OPTIONS)
    groups = results["groups"]
    values = {name: [entry["value"] for entry in group] for name, group in groups.items()}
    assert values["most"] == pytest.approx(np.sort(kappa)[::-1][:18])
    assert values["least"] == pytest.approx(np.sort(kappa)[:18])
    files = {name: [entry["file"] for entry in group] for name, group in groups.items()}
    assert files["least"][0] == sample.test.file(kappa.argmin())
    assert re.fullmatch(r"digits/test:\d+", files["least"][0])
    mistakes = linear_probe(run).predict(embeddings["features"]) != sample.test.labels
    assert values["failures"][0] == pytest.approx(kappa[mistakes].max())
    # The page has the pixels of each, with its file.
    shown = re.findall(r'<figure title="([^"]+)">.*?src="([^"]+)"', page.read_text(), re.S)
    hint, address = shown[18]
    assert hint.startswith(files["least"][0])
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(pixels, sample.test.images()[kappa.argmin()])


def test_no_image_is_among_the_most_and_the_least_certain(run):
    groups = evaluation.images(run, max_images=9)["groups"]
    most, least = ({entry["file"] for entry in groups[name]} for name in ("most", "least"))
    assert len(most) == len(least) == 4
    assert not most & least


def test_the_page_has_all_results_of_the_same_checkpoint(run, page, capsys):
    """Also those of suites that were measured earlier, and none of another checkpoint."""
    evaluation.evaluate(run, "probe", OPTIONS)
    assert f"report: {page}" in capsys.readouterr().out
    assert '<h2 id="failures"' in page.read_text()
    other = dataclasses.replace(run.sample(60), facts={"step": 99, "checkpoint": "step-99"})
    evaluation.evaluate(other, "probe")
    text = page.read_text()
    assert '<h2 id="what-the-features-know"' in text
    assert '<h2 id="failures"' not in text
    assert "Not shown, since measured at another checkpoint" in text
    evaluation.evaluate(run, "probe", OPTIONS)
    assert '<h2 id="failures"' in page.read_text()
    # Results of the whole set have a page of their own.
    evaluation.evaluate(run, "curves")
    assert "failures" not in (run.workdir / "eval" / "report.html").read_text()


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
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]

    def title(path, width=500):  # as on a telephone
        shown = subprocess.run(
            [*command, f"--window-size={width},900", "--dump-dom", path.as_uri()],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return re.search("<title>(.*?)</title>", shown.stdout).group(1)

    count = page.read_text().count("<img ")
    assert title(copy) == f"broken 0 of {count}, wide false"
    assert "broken" not in title(guarded)


def test_the_projector_has_a_line_an_image(run, page):
    sample = run.sample(60)
    directory = sample.directory_for("projector")
    directions = np.loadtxt(directory / "directions.tsv", delimiter="\t")
    outputs = sample.embed(sample.test)
    np.testing.assert_allclose(directions, outputs["mean_direction"], atol=1e-5)
    head, *lines = (directory / "metadata.tsv").read_text().splitlines()
    assert head.split("\t") == ["image", "kappa", "label"]
    assert len(lines) == 60
    file, kappa, label = lines[7].split("\t")
    assert float(kappa) == pytest.approx(outputs["concentration"][7], rel=1e-4)
    assert (file, label) == (sample.test.file(7), str(sample.test.labels[7]))
    sprite = np.asarray(Image.open(directory / "sprite.png"))
    assert sprite.shape == (64, 64, 3)  # 8 x 8 places of 8 x 8 pixels hold 60 images
    np.testing.assert_array_equal(sprite[8:16, 16:24], sample.test.images(10, 11)[0])
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
    names = ("images", "probe", "projector")
    measured = {name: evaluation.SUITES[name](subject, OPTIONS) for name in names}
    measured["projector"]["open"] = NASTY
    parser = Parser()
    parser.feed(report.render(subject, tmp_path / "sample60", measured, [NASTY]))
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
    templates = list(pathlib.Path(pages.__file__).parent.glob("*.j2"))
    assert {"base.html.j2", "explore.html.j2", "report.html.j2"} <= {t.name for t in templates}
    for template in templates:
        for way_out in ("|safe", "| safe", "autoescape", "Markup"):
            assert way_out not in template.read_text()
