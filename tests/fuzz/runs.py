"""Can a damaged or hostile run directory do harm?

Changes one file of a run, loads the run as `tfvmf evaluate` does, again and again. A case also
fails if the run has other weights than were saved.
"""

import dataclasses
import io
import json
import pathlib
import random
import tempfile
from collections.abc import Callable

import numpy as np
from fuzz.arrays import damaged
from fuzz.hunt import VALUES, hunt, mutate
from helpers.untrained import make_run

from tfvmf import evaluation, inference, models, posthoc
from tfvmf.settings import flatten
from tfvmf.training import read_metrics


def mutate_config(content: bytes, chance: random.Random) -> bytes:
    """A config.json with other bytes, or with another value in one of its fields."""
    if chance.random() < 0.3:
        return mutate(content, chance)
    stored = json.loads(content)
    places = [(stored, key) for key in stored]
    for parent in (stored["facts"], stored["config"], *stored["config"].values()):
        if isinstance(parent, dict):
            places += [(parent, key) for key in parent]
    parent, key = chance.choice(places)
    swapped = list(flatten(stored["config"]).values())
    match chance.randrange(8):
        case 0:
            del parent[key]
        case 1:
            parent[f"{key}_"] = parent.pop(key)
        case 2:
            parent[key] = chance.choice(swapped)
        case _:
            parent[key] = chance.choice(VALUES)
    return json.dumps(stored).encode()


def mutate_judge(content: bytes, chance: random.Random) -> bytes:
    """A judge.npz with other arrays in it."""
    with np.load(io.BytesIO(content)) as found:
        return damaged(dict(found), chance)


class Target:
    """A run directory, and what a reader does with it."""

    def __init__(self, workdir: pathlib.Path) -> None:
        self.workdir = make_run(workdir, **{"model.width": 2, "data.image_size": 8})
        lines = [
            {"step": step, "epoch": step / 4, "loss": 1.0, "kappa": 2.0, "kappa_std": 0.1}
            for step in range(1, 9)
        ]
        lines.append({"step": 8, "eval_kappa": 1.5, "knn_accuracy": 0.5})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (workdir / "metrics.jsonl").write_text(text)
        self.subject = evaluation.subject_from_run(workdir)
        self.weights = self.subject.encoder.get_weights()
        images = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), dtype=np.uint8)
        self.outputs = inference.Embedder(models.with_levels(self.subject.encoder))(images)
        features, levels = self.outputs["features"], self.outputs["levels"]
        familiarity = posthoc.Familiarity.fit(features, levels)
        decision = posthoc.Decision.fit(
            self.outputs["concentration"], familiarity(features, levels).numpy()
        )
        posthoc.Judge(familiarity=familiarity, decision=decision, step=7).save(workdir)

    def config(self) -> None:
        """Loads the run and its data."""
        subject = evaluation.subject_from_run(self.workdir)
        assert subject.test.size

    def metrics(self) -> None:
        """Draws the curves."""
        found = read_metrics(self.workdir)
        evaluation.curves(dataclasses.replace(self.subject, metrics=found))

    def judge(self) -> None:
        """Judges images: with what is in the file, or not at all."""
        judge = posthoc.load(self.workdir, encoder=self.subject.encoder)
        assert judge is not None
        judged = judge(self.outputs)
        assert judged["accept"].shape == (80,)
        confidence = judged["confidence"].numpy()
        assert ((confidence > 0) & (confidence <= 1)).all(), confidence

    def checkpoint(self) -> None:
        """Loads the run: with the weights that were saved, or not at all."""
        subject = evaluation.subject_from_run(self.workdir)
        for found, saved in zip(subject.encoder.get_weights(), self.weights, strict=True):
            np.testing.assert_array_equal(found, saved)


def fuzz(kind: str, *, count: int, seed: int, seconds: float = float("inf")) -> list[str]:
    """Runs cases of a kind, at most so many and so long; returns what failed, and prints it."""
    names = {
        "config": "config.json",
        "metrics": "metrics.jsonl",
        "checkpoint": "checkpoints/step-*",
        "judge": "judge.npz",
    }
    change = {"config": mutate_config, "judge": mutate_judge}.get(kind, mutate)
    with tempfile.TemporaryDirectory(prefix="tfvmf-fuzz-") as scratch:
        target = Target(pathlib.Path(scratch) / "run")
        check: Callable[[], None] = getattr(target, kind)
        originals = {path: path.read_bytes() for path in target.workdir.glob(names[kind])}
        check()  # nothing is wrong with it yet

        def case(chance: random.Random) -> None:
            path = chance.choice(sorted(originals))
            path.write_bytes(change(originals[path], chance))
            try:
                check()
            finally:
                path.write_bytes(originals[path])

        return hunt(kind, case, count=count, seed=seed, seconds=seconds)
