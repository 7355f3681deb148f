"""How much the features know: classes by nearest neighbours."""

from tfvmf import neighbours
from tfvmf.errors import UserError
from tfvmf.evaluation.run import Evaluation
from tfvmf.files import write_json

NEIGHBOURS = (200, 20)


def run(evaluation: Evaluation) -> dict[str, object]:
    """Cosine k-NN accuracy on the backbone's features, at k = 200 and 20."""
    train, test = evaluation.train, evaluation.test
    if train.labels is None or test.labels is None:
        raise UserError(
            f"{test.name} has no labels: the suite probe needs a labelled "
            "--config.data.eval_source at training"
        )
    size = min(test.size, evaluation.images or test.size)
    bank = evaluation.embedder.source(train)["features"]
    queries = evaluation.embedder.source(test, limit=size)["features"]
    results: dict[str, object] = {
        f"knn_{k}_accuracy": float(
            (neighbours.classify(queries, bank, train.labels, k=k) == test.labels[:size]).mean()
        )
        for k in NEIGHBOURS
    }
    results |= {
        "data": test.name,
        "train_images": train.size,
        "images": size,
        "step": evaluation.step,
        "method": evaluation.config.method,
    }
    write_json(evaluation.directory("probe") / "results.json", results)
    return results
