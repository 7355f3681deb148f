"""How much the features know: classes by nearest neighbors and by a linear probe."""

from typing import Any

import keras
import numpy as np

from tfvmf import neighbors
from tfvmf.evaluation import paper
from tfvmf.evaluation.run import Evaluation
from tfvmf.files import write_json, write_text

NEIGHBORS = (200, 20)


def run(evaluation: Evaluation) -> dict[str, Any]:
    """Top-1 accuracy on the backbone's features; writes `table.md` and `results.json`.

    By a vote of the cosine nearest training images, and by a logistic regression whose penalty is
    chosen on held-out training images; of a supervised model also by its own classifier.
    """
    train_labels, test_labels = evaluation.labels("probe")
    bank = evaluation.train_embeddings["features"]
    queries = evaluation.test_embeddings["features"]

    def accuracy(predicted: np.ndarray) -> float:
        return float((predicted == test_labels).mean())

    probe = evaluation.linear_probe
    results: dict[str, Any] = {
        f"knn_{k}_accuracy": accuracy(neighbors.classify(queries, bank, train_labels, k=k))
        for k in NEIGHBORS
    }
    results["linear_accuracy"] = accuracy(probe.predict(queries))
    classifier = evaluation.method.models.get("classifier")
    if classifier is not None:
        results["classifier_accuracy"] = accuracy(_classify(classifier, queries))
    results |= {
        "linear_l2": probe.l2,
        "linear_path": [{"l2": l2, "cross_entropy": value} for l2, value in probe.path.items()],
        "data": evaluation.test.name,
        "train_images": evaluation.train.size,
        "images": len(queries),
        "features": bank.shape[1],
        "step": evaluation.step,
        "method": evaluation.config.method,
    }
    directory = evaluation.directory("probe")
    write_text(directory / "table.md", table_markdown(results))
    write_json(directory / "results.json", results)
    return results


def _classify(classifier: keras.Model, features: np.ndarray) -> np.ndarray:
    return np.asarray(classifier(features)).argmax(axis=1)


def table_markdown(results: dict[str, Any]) -> str:
    """The accuracies, a row each, with what the paper says of CIFAR-10 beside."""
    rows = {
        **{f"{k} nearest neighbors": results[f"knn_{k}_accuracy"] for k in NEIGHBORS},
        "linear probe": results["linear_accuracy"],
    }
    if "classifier_accuracy" in results:
        rows["its own classifier"] = results["classifier_accuracy"]
    lines = [
        f"# What the features know: {results['method']} on {results['data']}\n",
        f"Top-1 accuracy of {results['images']:,} test images, step {results['step']}, from "
        f"{results['features']} features of {results['train_images']:,} training images. The "
        f"probe's penalty, {results['linear_l2']:.1e}, was chosen on a tenth of these.\n",
        "| classifier | accuracy |",
        "| --- | ---: |",
        *(f"| {name} | {value:.4f} |" for name, value in rows.items()),
    ]
    if results["data"] == "cifar10":
        failure = paper.FAILURE
        share = failure["correct"] / (failure["correct"] + failure["wrong"])
        lines.append(f"| the paper's classifier (ResNet-50, 1000 epochs) | {share:.4f} |")
    return "\n".join(lines) + "\n"
