"""The report and the projector, read back: by parsers, and by a real browser where there is one."""

import html.parser
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers.tiny import tiny_config
from PIL import Image

from tfvmf import evaluation, training
from tfvmf.evaluation import gallery


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    training.train(tiny_config(epochs=1), workdir)
    return evaluation.load(workdir, images=60)


@pytest.fixture(scope="module")
def page(run):
    names = ("curves", "probe", "failure", "projector")
    results = {name: evaluation.SUITES[name](run) for name in names}
    path = evaluation.report.write(run, results)
    assert path == run.workdir / "eval" / "report.html"
    return path


class Parser(html.parser.HTMLParser):
    """Collects what a page points to, and whether its tags close."""

    def __init__(self):
        super().__init__()
        self.addresses, self.open, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
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
    accuracy = evaluation.SUITES["probe"](run)["linear_accuracy"]
    assert f"{accuracy:.3f}" in text


def test_the_gallery_is_in_order_of_the_score(run):
    kappa = run.test_embeddings["concentration"]
    most, least, wrong = gallery.choose(run, shown=5).values()
    assert [p.caption for p in most] == [f"{v:.3g}" for v in np.sort(kappa)[::-1][:5]]
    assert [p.caption for p in least] == [f"{v:.3g}" for v in np.sort(kappa)[:5]]
    np.testing.assert_array_equal(least[0].image, run.test.images()[kappa.argmin()])
    predicted = run.linear_probe.predict(run.test_embeddings["features"])
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
    copy.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,900"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
    shown = subprocess.run(
        [*command, "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    title = re.search("<title>(.*?)</title>", shown.stdout).group(1)
    count = page.read_text().count("<img ")
    assert title == f"broken 0 of {count}, wide false"


def test_the_projector_has_a_line_an_image(run, page):
    directory = run.directory("projector")
    directions = np.loadtxt(directory / "directions.tsv", delimiter="\t")
    np.testing.assert_allclose(directions, run.test_embeddings["mean_direction"], atol=1e-5)
    head, *lines = (directory / "metadata.tsv").read_text().splitlines()
    assert head.split("\t") == ["image", "kappa", "label"]
    assert len(lines) == 60
    number, kappa, label = lines[7].split("\t")
    assert float(kappa) == pytest.approx(run.test_embeddings["concentration"][7], rel=1e-4)
    assert (number, label) == ("7", str(run.test.labels[7]))
    sprite = np.asarray(Image.open(directory / "sprite.png"))
    assert sprite.shape == (64, 64, 3)  # 8 x 8 places of 8 x 8 pixels hold 60 images
    np.testing.assert_array_equal(sprite[8:16, 16:24], run.test.images(10, 11)[0])
    assert 'tensor_path: "directions.tsv"' in (directory / "projector_config.pbtxt").read_text()
