"""Does the score know foreign images? The paper's Table 2, with controls.

Familiar are the test images of one set of data, foreign those of another. Distances are measured
to the familiar set's training images, in the features of a supervised run (F_res, as the paper
does) and in the run's own (F_ssl).
"""

import os
from typing import Any

from tfvmf import data, training
from tfvmf.errors import UserError
from tfvmf.evaluation import ood_output, ood_scores, paper
from tfvmf.evaluation.ood_scores import Sample
from tfvmf.evaluation.run import Evaluation, NotApplicable, load
from tfvmf.files import write_json, write_text
from tfvmf.inference import Embeddings

Embedded = tuple[data.Source, Embeddings]

_NO_SUPERVISED = (
    "left out: train a classifier with bin/train --method=supervised on the same data, and give "
    "its run as --supervised_workdir"
)


def run(evaluation: Evaluation) -> dict[str, Any]:
    """Measures every detector against every foreign set; writes tables, plots and numbers."""
    inside, outs = _specs(evaluation)
    models = _models(evaluation)
    # All that can be wrong with the sources shows before anything is measured.
    foreign = {spec: training.load_source(evaluation.config, spec, "test") for spec in outs}
    train, test = _familiar(evaluation, inside)
    bank = _sample(evaluation, models, *train)
    detectors = ood_scores.detectors(bank, train[0].labels, evaluation.score)
    familiar = _sample(evaluation, models, *test)
    scores_inside = {name: detect(familiar) for name, detect in detectors.items()}
    results: dict[str, Any] = {
        "in": inside,
        "score": evaluation.score.title,
        "train_images": len(bank["score"]),
        "images": len(familiar["score"]),
        "step": evaluation.step,
        "method": evaluation.config.method,
        "checkpoint": evaluation.checkpoint,
        **_notes(evaluation, models, inside),
        "joined_scale": {space: ood_scores.spread(bank[space]) for space in models},
        "out": {},
    }
    directory = evaluation.directory("ood")
    for spec, source in foreign.items():
        embeddings = evaluation.embed(source, limit=evaluation.images)
        sample = _sample(evaluation, models, source, embeddings)
        scores = {name: detect(sample) for name, detect in detectors.items()}
        measured = {
            name: ood_scores.detection(scores_inside[name], values)
            for name, values in scores.items()
        }
        pair = _identity(inside), _identity(spec)
        results["out"][spec] = {
            "images": len(sample["score"]),
            "scores": measured,
            "paper": paper.TABLE_2.get(pair, {}),
        }
        print(ood_output.headline(spec, measured), flush=True)
        ood_output.draw(directory, inside, spec, scores_inside, scores, measured)
    write_text(directory / "table.csv", ood_output.table_csv(results))
    write_text(directory / "table.md", ood_output.table_markdown(results))
    write_json(directory / "results.json", results)
    return results


def _specs(evaluation: Evaluation) -> tuple[str, list[str]]:
    """The familiar set and the foreign ones, as the user wrote them."""
    inside = evaluation.in_source or evaluation.own_source
    outs = list(dict.fromkeys(evaluation.out_sources))
    if not outs:
        raise NotApplicable(
            "the suite ood needs --out, sets of foreign images like --out=cifar100,mnist"
        )
    for spec in outs:
        if _identity(spec) == _identity(inside):
            raise UserError(
                f"--out={spec} is the familiar set itself: name another, or another --in"
            )
    return inside, outs


def _models(evaluation: Evaluation) -> dict[str, Evaluation]:
    """Whose features are used, by the name of the space: F_res first."""
    if evaluation.config.method == "supervised":
        return {"f_res": evaluation}
    if not evaluation.supervised_workdir:
        return {"f_ssl": evaluation}
    workdir = evaluation.supervised_workdir
    try:
        supervised = load(workdir, data_dir=evaluation.config.data.data_dir)
    except UserError as error:
        message = str(error).replace("--workdir=", "--supervised_workdir=")
        raise UserError(message) from error
    if supervised.config.method != "supervised":
        raise UserError(
            f"--supervised_workdir={workdir} is a run of method {supervised.config.method}: "
            "one of bin/train --method=supervised is needed"
        )
    return {"f_res": supervised, "f_ssl": evaluation}


def _familiar(evaluation: Evaluation, spec: str) -> tuple[Embedded, Embedded]:
    """Training and test images of the familiar set."""
    if _identity(spec) == _identity(evaluation.own_source):
        return (
            (evaluation.train, evaluation.train_embeddings),
            (evaluation.test, evaluation.test_embeddings),
        )
    train, test = (
        training.load_source(evaluation.config, spec, split) for split in ("train", "test")
    )
    limit = evaluation.images
    return (train, evaluation.embed(train)), (test, evaluation.embed(test, limit=limit))


def _sample(
    evaluation: Evaluation, models: dict[str, Evaluation], source: data.Source, known: Embeddings
) -> Sample:
    """Score and features of the images of a source that the run has embedded."""
    sample = {"score": evaluation.main_score(source, known)}
    for space, model in models.items():
        if model is evaluation:
            sample[space] = known["features"]
            continue
        # The same images in the same order, at the size that the other run was trained at.
        same_size = model.config.data.image_size == source.image_shape[0]
        images = (
            source if same_size else training.load_source(model.config, source.name, source.split)
        )
        sample[space] = model.embed(images, limit=len(known["features"]))["features"]
    return sample


def _notes(evaluation: Evaluation, models: dict[str, Evaluation], inside: str) -> dict[str, str]:
    """What a reader of the numbers should know."""
    notes = {} if "f_res" in models else {"f_res": _NO_SUPERVISED}
    strange = [
        f"{model.workdir} was trained on {model.config.data.source}"
        for model in {id(model): model for model in (evaluation, *models.values())}.values()
        if _identity(model.config.data.source) != _identity(inside)
    ]
    if strange:
        notes["note"] = f"{' and '.join(strange)}, not on {inside}"
    return notes


def _identity(spec: str) -> str:
    """The same for two ways of writing the same data: other versions count as the same."""
    scheme, _, target = spec.partition(":")
    if scheme in ("folder", "npz"):
        return f"{scheme}:{os.path.realpath(os.path.expanduser(target))}"
    return spec.removeprefix("tfds:").partition(":")[0]
