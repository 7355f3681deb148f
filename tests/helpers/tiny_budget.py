"""The smallest budget that reproduces anything: four steps per run, twenty images."""

from tfvmf.reproduction.experiments import DIGITS, Budget
from tfvmf.reproduction.plan import Workspace

TINY = Budget(
    name="tiny",
    config="digits",
    changes={
        "epochs": 1,
        "batch_size": 330,
        "data.image_size": 8,
        "data.reserve": 77.0,
        "model.backbone": "resnet10",
        "model.width": 2,
        "model.dimension": 64,
        "model.hidden": 8,
        "mc_infonce.num_samples": 4,
        "monitor.every_epochs": 0.0,
        "checkpoint.every_epochs": 0.5,
        "checkpoint.keep": 5,
        "log_every_steps": 1,
    },
    max_images=20,
    num_members=2,
    num_passes=2,
    sets=DIGITS.sets,
    rates=dict.fromkeys(("resnet10", "resnet18", "resnet34", "resnet50"), 330.0),
    measuring=1000.0,
)


def tiny_workspace(directory, **choices):
    return Workspace(budget=TINY, directory=directory, **choices)
