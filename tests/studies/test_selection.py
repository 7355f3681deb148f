"""The studies of selection: what is planted, what counts as found, and simulated duplicates."""

import io

import numpy as np
from PIL import Image

from studies.selection import scale, story
from tfvmf import selection
from tfvmf.data.base import ArraySource, Request


def test_what_is_planted_and_what_counts_as_found(tmp_path, monkeypatch):
    counts = {"copy": 4, "digit": 5, "noise": 3, "blur": 3}
    monkeypatch.setattr(story, "KINDS", counts)
    rng = np.random.default_rng(0)
    request = Request(spec="x", target="x", split="test")
    test, digits = (
        ArraySource(request, rng.integers(0, 256, (40, 16, 16, 3), np.uint8)) for _ in "ab"
    )
    story.plant(tmp_path, test, digits)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 40
    found = {name: [n for n in names if story.kind(n) == name] for name in (*counts, "test")}
    assert {name: len(each) for name, each in found.items()} == {**counts, "test": 25}
    assert {n[5:10] for n in found["copy"]} < {n[5:10] for n in found["test"]}
    rest = {n[5:10] for n in found["test"]} & {
        n.split("_")[1] for n in found["noise"] + found["blur"]
    }
    assert rest == set()  # a damaged image is not there as it was
    copy = found["copy"][0]
    columns = {
        "file": np.array([copy, found["digit"][0], found["test"][0]], object),
        "reason": np.array(["familiarity 1", "", ""], object),
    }
    chosen = selection.Selection(columns=columns, rows=np.arange(3), of=40, notes=[])
    assert story.shares(chosen) == {"copy": 0.25, "digit": 0.2, "noise": 0, "blur": 0}
    # Of a pair either may be the one that is listed; a copy of something else is not found.
    columns["file"][:] = [f"a/test_{copy[5:10]}.png", found["copy"][1], found["digit"][2]]
    columns["reason"][:] = [f"cosine 0.9 to a/{copy}, which is kept"] * 3
    assert story.shares(chosen) == {"copy": 0.25, "digit": 0.2, "noise": 0, "blur": 0}


def test_a_copy_is_the_image_moved_by_two_pixels():
    ramp = np.add.outer(np.arange(32), np.arange(32)).astype(np.uint8)
    image = np.repeat(3 * ramp[..., None], 3, axis=2)
    for seed in range(8):
        content = story.shifted(image, np.random.default_rng(seed))
        moved = np.asarray(Image.open(io.BytesIO(content))).astype(int)
        change = np.median(moved - image.astype(int))
        assert abs(abs(change) - 6) <= 1


def test_simulated_duplicates_are_found(tmp_path):
    scale.simulate(tmp_path, 2000, 32)
    planted = np.load(tmp_path / "planted.npy")
    assert len(planted) == 40
    chosen = selection.select(tmp_path, by="duplicates", threshold=scale.THRESHOLD)
    copies, originals = np.split(planted, 2)
    listed = np.isin(copies, chosen.rows) | np.isin(originals, chosen.rows)
    assert listed.mean() > 0.9
    assert scale.duplicates_recall(tmp_path, chosen.rows.tolist()).startswith("1.0000 of ")
    assert scale.duplicates_recall(tmp_path, []).startswith("0.0000 of ")
    far = selection.select(tmp_path, by="diverse", count=80)
    assert scale.diverse_recall(tmp_path, far.rows.tolist()) == "1.0000 of 50"
    assert scale.diverse_recall(tmp_path, list(range(80))) != "1.0000 of 50"
