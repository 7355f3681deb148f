"""The suite cifar10c at every checkpoint of a run: how soon kappa can be relied on."""

import matplotlib.pyplot as plt

from tfvmf.evaluation import cifar10c, plots
from tfvmf.evaluation.corrupted import open_corrupted
from tfvmf.evaluation.run import Evaluation
from tfvmf.files import write_json, write_text


def run(evaluation: Evaluation) -> dict[str, object]:
    """Measures each checkpoint that the run keeps; writes a table and a plot."""
    rows = []
    corrupted = open_corrupted(evaluation)
    for checkpoint in evaluation.checkpoints():
        at_step = evaluation.at(checkpoint)
        results, _, _ = cifar10c.measure(at_step, corrupted)
        rows.append(
            {
                "step": at_step.step,
                "mean_spearman": results["mean_spearman"],
                "mean_pearson": results["mean_pearson"],
                "mean_per_image": results["mean_per_image"],
            }
        )
        print(f"step {at_step.step}: mean Spearman {results['mean_spearman']:.3f}", flush=True)
    directory = evaluation.directory("cifar10c")
    lines = [",".join(rows[0]), *(",".join(f"{v:.6g}" for v in row.values()) for row in rows)]
    write_text(directory / "along_training.csv", "\n".join(lines) + "\n")
    with plt.rc_context(plots.STYLE):
        figure, axis = plt.subplots(figsize=(6, 3))
        steps = [row["step"] for row in rows]
        axis.plot(steps, [row["mean_spearman"] for row in rows], "o-", label="six points")
        axis.plot(steps, [row["mean_per_image"] for row in rows], "o-", label="all images")
        axis.set_xlabel("training step")
        axis.set_title("mean Spearman correlation of kappa with severity", loc="left")
        axis.legend()
        plots.save(figure, directory / "along_training.png")
    write_json(directory / "along_training.json", rows)
    return {"checkpoints": len(rows), "mean_spearman": rows[-1]["mean_spearman"]}
