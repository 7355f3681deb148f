"""The page of `tfvmf explore`, read back: its data, its pictures, its policy, and bad input."""

import base64
import hashlib
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers.embedded import CLASSES, ODD_NAME, write_embedded
from PIL import Image

from tfvmf import programs
from tfvmf.data import load_source
from tfvmf.embedding import read_table, table
from tfvmf.errors import UserError
from tfvmf.selection import explore as module
from tfvmf.selection.explore import explore, project


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path, columns = write_embedded(tmp_path_factory.mktemp("table"))
    os.remove(columns["file"][7])
    return explore(path, threshold=0.999), columns, path


class Parser(html.parser.HTMLParser):
    """Scripts of a page by their kind, the tags, and the addresses."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.scripts, self.inside = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        assert not any(key.startswith("on") for key, _ in attrs)
        if tag == "script":
            self.inside = dict(attrs)
            self.scripts.append([self.inside.get("id", "code"), ""])

    def handle_data(self, data):
        if self.inside is not None:
            self.scripts[-1][1] += data

    def handle_endtag(self, tag):
        if tag == "script":
            self.inside = None


def read_page(path):
    parser = Parser(pathlib.Path(path).read_text(encoding="utf-8"))
    scripts = dict(parser.scripts)
    return json.loads(scripts["values"]), json.loads(scripts["thumbnails"]), parser


def test_the_page_has_what_the_table_has(made):
    done, columns, path = made
    values, thumbnails, _ = read_page(done.page)
    assert (done.page, done.images, done.left_out) == (path.with_suffix(".html"), 58, 2)
    assert values["file"] == columns["file"].tolist()
    for name in ("label", "class"):
        assert [values["classes"][each] for each in values[name]] == columns[name].tolist()
    for name in ("concentration", "familiarity", "confidence", "class_probability"):
        np.testing.assert_allclose(values["scores"][name], columns[name], rtol=1e-6)
    assert values["alpha"] == 0.05
    for row in (0, 5, 57):
        content = base64.b64decode(thumbnails[row])
        shown = Image.open(io.BytesIO(content))
        assert shown.size == (20, 20)  # a square, not enlarged
        pixels = np.asarray(Image.open(columns["file"][row]))[:, 5:25].astype(float)
        np.testing.assert_allclose(np.asarray(shown), pixels, atol=6)


def test_decisions_follow_from_the_confidences_in_the_page(made):
    """What the page computes at the table's own alpha is the table's own `accept`."""
    _, columns, _ = made
    values, _, _ = read_page(made[0].page)
    accept = np.array(values["scores"]["confidence"]) > values["alpha"]
    np.testing.assert_array_equal(accept, columns["accept"])


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_alpha_is_the_one_that_explains_the_table(alpha):
    confidence = (np.arange(1, 101) / 100).astype(np.float32)
    columns = {
        "file": np.array(["x"] * 100, object),
        "confidence": confidence,
        "accept": confidence > np.float32(alpha),
    }
    found = module._values(columns)
    accept = np.array(found["scores"]["confidence"]) > found["alpha"]
    np.testing.assert_array_equal(accept, columns["accept"])
    assert found["alpha"] == pytest.approx(alpha)


def test_neighbors_and_groups_are_those_of_all_cosines(made):
    _, columns, _ = made
    values, _, _ = read_page(made[0].page)
    cosines = columns["mean_direction"].astype(np.float64) @ columns["mean_direction"].T
    np.fill_diagonal(cosines, -2)
    best = -np.sort(-cosines, axis=1)[:, :12]
    np.testing.assert_allclose(values["cosines"], best, atol=6e-4)
    found = np.take_along_axis(cosines, np.array(values["neighbors"]), axis=1)
    np.testing.assert_allclose(found, best, atol=1e-6)
    kappa = columns["concentration"]
    trio, pair = values["groups"]
    assert (sorted(trio), sorted(pair)) == ([2, 3, 4], [0, 1])
    assert kappa[trio[0]] == kappa[trio].max()
    assert made[0].groups == 2


def test_the_map_keeps_neighbors_together_and_is_computed_once(made, monkeypatch):
    done, _, path = made
    values, _, _ = read_page(done.page)
    place = np.stack([values["x"], values["y"]], axis=1).astype(float)
    assert place.min() == 0
    assert place.max() == 9999
    far = np.linalg.norm(place[:, None] - place, axis=2)
    near = np.take_along_axis(far, np.array(values["neighbors"])[:, :3], axis=1)
    assert np.median(near) < 0.5 * np.median(far)
    monkeypatch.setattr(module, "project", lambda *_, **__: pytest.fail("computed again"))
    text = done.page.read_text()
    explore(path, threshold=0.999)
    assert done.page.read_text() == text
    # Other vectors at the same place need another map.
    monkeypatch.setattr(module, "project", lambda vectors, seed: np.full((len(vectors), 2), 7))
    again = explore(path, done.page, max_images=20)
    assert set(read_page(again.page)[0]["x"]) == {7}
    monkeypatch.undo()
    explore(path, threshold=0.999)
    assert done.page.read_text() == text


def test_a_map_of_few_or_equal_vectors():
    rng = np.random.default_rng(0)
    for count, width in ((1, 4), (2, 1), (9, 2), (40, 1)):
        assert project(rng.normal(size=(count, width))).shape == (count, 2)
    same = project(np.ones((40, 3)))
    assert same.min() == same.max() == 0


def test_rows_beyond_the_landmarks_lie_by_their_nearest(monkeypatch):
    monkeypatch.setattr(module, "_LANDMARKS", 60)
    rng = np.random.default_rng(0)
    ends = np.repeat(np.eye(4)[:2], 50, axis=0) + 0.01 * rng.normal(size=(100, 4))
    place = project(ends)
    gap = np.linalg.norm(place[:50].mean(0) - place[50:].mean(0))
    for half in (place[:50], place[50:]):
        assert np.linalg.norm(half - half.mean(0), axis=1).max() < gap


def test_names_are_text_and_only_our_scripts_run(made):
    done, _, _ = made
    values, _, parser = read_page(done.page)
    assert any(name.endswith(ODD_NAME.rsplit("/", 1)[-1]) for name in values["file"])
    assert set(values["classes"]) == set(CLASSES)
    text = done.page.read_text()
    assert "alert(1)</script>" not in text
    assert "onerror=alert" not in text.replace("onerror=alert(1)\\u003e", "")
    assert parser.tags.count("script") == 4
    assert "img" not in parser.tags
    assert parser.addresses == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text).group(1)
    policy = policy.replace("&#39;", "'").replace("&#43;", "+")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data: file: 'self'"
    code = [each for name, each in parser.scripts if name == "code"]
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in code]
    assert rules["script-src"].split() == [f"'sha256-{each}'" for each in hashes]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", code[-1])


def test_missing_pictures_are_counted_and_blank(made):
    done, _, _ = made
    _, thumbnails, _ = read_page(done.page)
    assert done.missing == 1
    assert thumbnails[7] is None
    assert "58 images; 2 rows left out: broken, or not finite; 1 without a picture" in (
        done.page.read_text()
    )


def test_more_images_are_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INLINE", 30)
    path, columns = write_embedded(tmp_path / "pictures")
    with pytest.raises(UserError, match=r"page\.html: 60 images do not fit into one file"):
        explore(path, tmp_path / "page.html")
    os.remove(columns["file"][3])
    done = explore(path)
    assert done.page == path.with_name("table-explore") / "index.html"
    _, thumbnails, _ = read_page(done.page)
    assert thumbnails == [int(row != 3) for row in range(58)]
    found = sorted(done.page.parent.glob("thumbnails/*/*.webp"))
    assert [int(each.stem) for each in found] == [row for row in range(58) if row != 3]
    assert found[0].parent.name == "000"
    # Fewer images leave no pictures of the others.
    fewer = explore(path, done.page.parent, max_images=10)
    assert fewer.images <= 10
    assert len(list(done.page.parent.glob("thumbnails/*/*.webp"))) == fewer.images - fewer.missing
    assert {each.name for each in done.page.parent.iterdir()} == {
        *("index.html", "map.npz", "thumbnails")
    }


def test_a_page_is_at_most_25_mb(tmp_path, monkeypatch):
    """Noise, which compresses worst, in names that take room too."""
    monkeypatch.setattr(module, "PAGE_BYTES", 420_000)
    path, columns = write_embedded(tmp_path)
    rng = np.random.default_rng(0)
    for file in columns["file"]:
        noise = rng.integers(0, 256, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file)
    done = explore(path)
    assert 300_000 < done.page.stat().st_size <= 420_000
    assert done.missing == 0
    monkeypatch.setattr(module, "PAGE_BYTES", 340_000)
    with pytest.raises(UserError, match="leaves no room for pictures: name a folder"):
        explore(path)


def test_pictures_of_a_source_come_from_data(tmp_path):
    source = load_source("digits", "test", image_size=8)
    rng = np.random.default_rng(0)
    outputs = {"features": rng.normal(size=(20, 4)).astype(np.float32)}
    files = [source.file(row) for row in range(18)] + ["digits/test:400", "digits/other:1"]
    schema = table.table_schema(outputs, labels=False)
    rows = table.to_arrow(schema, {"file": files, "error": [""] * 20}, outputs)
    with open(tmp_path / "t.npz", "wb") as file:
        table.write_table(file, ".npz", schema, 20, lambda names: iter([rows.select(names)]))
    assert (explore(tmp_path / "t.npz").missing, explore(tmp_path / "t.npz").sources) == (
        *(20, "digits"),
    )
    with pytest.raises(UserError, match="split 'other'"):
        explore(tmp_path / "t.npz", data="digits")
    rows = rows.slice(0, 19)
    with open(tmp_path / "t.npz", "wb") as file:
        table.write_table(file, ".npz", schema, 19, lambda names: iter([rows.select(names)]))
    done = explore(tmp_path / "t.npz", data="digits")
    assert (done.missing, done.sources) == (1, "")
    values, thumbnails, _ = read_page(done.page)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(thumbnails[4]))).convert("L"))
    gray = source.images(4, 5)[0, :, :, 0].astype(float)
    assert np.corrcoef(shown.ravel(), gray.ravel())[0, 1] > 0.99
    # Without scores and classes there is a page all the same.
    assert values["scores"] == {}
    assert values["label"] is values["class"] is None


BAD = [
    (["none.parquet"], "none.parquet: there is no such file"),
    (["t.parquet", "--threshold=1.5"], "--threshold=1.5: expected a cosine between -1 and 1"),
    (["t.parquet", "--output=no/such/page.html"], "--output=no/such/page.html: expected an .html"),
    (["t.parquet", "--output=t.parquet"], "--output=t.parquet: expected an .html file or a folder"),
    (["t.csv"], "t.csv has no column mean_direction or features"),
    (["t.parquet", "--data=nothing_like_it"], "nothing_like_it"),
    (["t.parquet", "--max_images=-1"], "--max_images"),
    ([], "--table is missing"),
    (["broken.parquet"], "none of its 6 rows has a finite vector"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD)
def test_bad_input_is_one_line(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path, _ = write_embedded("pictures", 12)
    shutil.copy(path, "t.parquet")
    broken, _ = write_embedded("broken", 6, broken=3, unknown=3)
    shutil.copy(broken, "broken.parquet")
    pathlib.Path("t.csv").write_text("file,error,concentration\r\na.png,,3.0\r\n")
    if "--data=nothing_like_it" in arguments:  # asked for only where rows need it
        pathlib.Path("t.parquet").unlink()
        found = read_table(path)
        schema = table.table_schema({"features": found["features"]}, labels=False)
        names = {"file": ["x/test:1"] * 4, "error": [""] * 4}
        rows = table.to_arrow(schema, names, {"features": found["features"][:4]})
        with open("t.parquet", "wb") as file:
            table.write_table(file, ".parquet", schema, 4, lambda names: iter([rows]))
    before = sorted(tmp_path.rglob("*.html"))
    assert programs.main(["explore", *arguments]) == 2
    printed = capsys.readouterr()
    assert line in printed.err
    assert printed.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*.html")) == before


def test_too_many_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 10)
    path, _ = write_embedded(tmp_path, 12)
    with pytest.raises(UserError, match=r"has 12 rows, and a page shows up to 10: choose some"):
        explore(path)
    assert explore(path, max_images=10).images <= 10


def test_the_program_says_what_is_where_without_tensorflow(tmp_path):
    path, columns = write_embedded(tmp_path)
    os.remove(columns["file"][0])
    code = (
        "import sys; from tfvmf import programs; code = programs.main(sys.argv[1:]); "
        "print('tensorflow' in sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "explore", str(path), "--threshold=0.999"]
    root = pathlib.Path(module.__file__).parents[2]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    page = path.with_suffix(".html")
    assert done.stdout.splitlines() == [
        f"page: {page} ({page.stat().st_size / 1e6:.1f} MB)",
        "  images 58, groups of duplicates 2, 2 rows left out: broken, or not finite",
        "  1 pictures were not found and are left blank",
        "False",
    ]
