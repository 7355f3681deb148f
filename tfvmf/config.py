"""Every setting of a run, its default and its bounds. Nothing here needs TensorFlow."""

from typing import Any

import ml_collections

from tfvmf.errors import UserError

STRATEGIES = ("default", "mirrored", "multi_worker")
OPTIMIZERS = ("adam", "sgd", "lars")
PRECISIONS = ("float32", "mixed_bfloat16")


def default_config() -> ml_collections.ConfigDict:
    """The paper's settings, on the embedded digits; `configs/` holds what differs."""
    return ml_collections.ConfigDict(
        {
            "name": "default",  # the run directory's first word
            "method": "simclr_vmf",
            "strategy": "default",
            "seed": 0,
            "epochs": 100,
            "batch_size": 256,  # images, over all replicas; each becomes two views
            "precision": "float32",
            "data": {
                "source": "digits",  # digits, a TFDS name, folder:/path or npz:/path
                "train_split": "train",
                "eval_split": "test",
                "eval_source": "",  # labeled data for monitor and suites; "" is `source`
                "data_dir": "",  # where TFDS finds prepared data sets
                "image_size": 32,
                "memory_limit_gib": 2.0,  # larger sets are read from disk as they are needed
            },
            "augment": {  # what each means: tfvmf.data.Augmentation
                "crop_min": 0.2,  # shares of the area
                "crop_max": 1.0,
                "ratio_min": 3 / 4,
                "ratio_max": 4 / 3,
                "flip_probability": 0.5,
                "brightness": 0.3,  # strengths of the color jitter
                "contrast": 0.3,
                "saturation": 0.3,
                "hue": 0.1,
                "jitter_probability": 0.8,
                "gray_probability": 0.2,
                "blur_probability": 0.0,
                "blur_sigma_min": 0.1,
                "blur_sigma_max": 2.0,
                "noise_sigma_max": 0.0,
                "noise_probability": 1.0,
            },
            "model": {
                "backbone": "resnet18",
                "width": 64,
                "stem": "cifar",
                "dimension": 128,
                "hidden": 512,
                "dropout": 0.0,  # probability of dropping a channel or a hidden unit of a head
                # All views of one size in one pass, with batch statistics in common. Otherwise, as
                # in the paper's program, each view has a pass and statistics of its own.
                "one_pass": False,
            },
            "simclr": {"temperature": 0.5},
            "simsiam": {"bottleneck": 4},  # the predictor's hidden layer is dimension / bottleneck
            "byol": {
                "momentum": 0.99,  # of the target at the start; it rises to 1
                # Batch norm at the end of the projector. The method's paper has none, and then
                # takes far more steps until it learns anything.
                "output_norm": False,
            },
            "swav": {
                "num_prototypes": 128,
                "temperature": 0.1,
                # Small values assign hard. 0.05 on ImageNet; on small sets that gives nearly equal
                # shares to all prototypes, and the loss stays at log(prototypes).
                "sinkhorn_epsilon": 0.02,
                "sinkhorn_iterations": 3,
                "freeze_epochs": 1.0,  # the prototypes stay as they are at first
                "queue_length": 0,  # past embeddings that take part in the assignment, a view
                "queue_start_epochs": 0.0,  # when the queue starts
                "num_local_views": 0,  # small crops beside the two views (multi-crop)
                "local_size": 16,  # their height and width
                "local_crop_min": 0.05,
                "local_crop_max": 0.2,
            },
            "concentration": {
                "align_weight": 0.05,
                "penalty_weight": 0.005,  # of the l2 regularizer
                "regularizer": "l2",  # the paper's, or vmf: the exact -log C(kappa)
                "initial": 0.0,  # kappa of an untrained head; 0: what suits the method
                "levels": "last",  # what the head sees: the features, or all levels of the network
                "view_kind": "augment",  # what it learns from; wide: also damaged views
            },
            "mc_infonce": {"temperature": 0.5, "num_samples": 64, "aggregation": "mean_log"},
            "fit_kappa": {  # of bin/fit_kappa, which sets them
                "model": "",  # what is frozen: a run, a model's file, or cached features
                "kind": "run",  # which of these: run, keras, saved_model or features
                "method": "",  # what trained it, if that was a run
                "fingerprint": "",  # of the file; a copy of the model is kept in the run directory
                "feature_layer": "",  # the output that is the features; "" for the obvious one
                "input_range": "",  # of the pixels that it expects: 0..1, -1..1 or 0..255
                "level_layers": "",  # layers whose maps the head sees, separated by commas
                "cache_views": 0,  # views of each image that are embedded once; 0: new ones a step
            },
            "ensemble": {
                "num_members": 1,
                "kind": "seeds",  # runs of their own, or snapshot: the ends of as many cycles
            },
            "optimizer": {
                "name": "adam",
                "learning_rate": 1e-3,
                "momentum": 0.9,  # of sgd and lars
                "weight_decay": 1e-6,  # decoupled; not on biases and norms
                "warmup_epochs": 10.0,
            },
            "monitor": {
                "every_epochs": 5.0,  # 0 switches the monitor off
                "neighbors": 20,
                "bank_images": 10_000,  # labeled images that vote, and images that are classified
                "query_images": 2_000,
            },
            "checkpoint": {"every_epochs": 1.0, "keep": 3},
            "log_every_steps": 10,
        }
    )


def validate(config: ml_collections.ConfigDict) -> None:
    """Raises a UserError that names the first setting that cannot be meant."""
    for key, choices in (
        ("strategy", STRATEGIES),
        ("precision", PRECISIONS),
        ("optimizer.name", OPTIMIZERS),
        ("model.backbone", ("resnet10", "resnet18", "resnet34", "resnet50")),
        ("model.stem", ("cifar", "imagenet")),
        ("concentration.regularizer", ("l2", "vmf")),
        ("concentration.levels", ("last", "all")),
        ("concentration.view_kind", ("augment", "wide")),
        ("mc_infonce.aggregation", ("mean_log", "logmeanexp")),
        ("fit_kappa.kind", ("run", "keras", "saved_model", "features")),
        ("fit_kappa.input_range", ("", "0..1", "-1..1", "0..255")),
        ("ensemble.kind", ("seeds", "snapshot")),
    ):
        value = _get(config, key)
        if value not in choices:
            raise UserError(f"--config.{key}={value} is unknown: use one of {', '.join(choices)}")
    for key, low in (
        ("epochs", 1),
        ("batch_size", 2),
        ("seed", 0),
        ("log_every_steps", 1),
        ("data.image_size", 8),
        ("data.memory_limit_gib", 0),
        ("model.width", 1),
        ("model.dimension", 2),
        ("model.hidden", 1),
        ("model.dropout", 0),
        ("simsiam.bottleneck", 1),
        ("byol.momentum", 0),
        ("swav.num_prototypes", 2),
        ("swav.sinkhorn_iterations", 1),
        ("swav.freeze_epochs", 0),
        ("swav.queue_length", 0),
        ("swav.queue_start_epochs", 0),
        ("swav.num_local_views", 0),
        ("swav.local_size", 8),
        ("concentration.align_weight", 0),
        ("concentration.penalty_weight", 0),
        ("concentration.initial", 0),
        ("fit_kappa.cache_views", 0),
        ("mc_infonce.num_samples", 1),
        ("ensemble.num_members", 1),
        ("optimizer.learning_rate", 0),
        ("optimizer.momentum", 0),
        ("optimizer.weight_decay", 0),
        ("optimizer.warmup_epochs", 0),
        ("monitor.every_epochs", 0),
        ("monitor.neighbors", 1),
        ("monitor.bank_images", 1),
        ("monitor.query_images", 1),
        ("checkpoint.every_epochs", 0.001),
        ("checkpoint.keep", 1),
    ):
        value = _get(config, key)
        if not value >= low:  # also refuses NaN
            raise UserError(f"--config.{key}={value} is too small: use at least {low}")
    for key, usual in (
        ("simclr.temperature", 0.5),
        ("mc_infonce.temperature", 0.5),
        ("swav.temperature", 0.1),
        ("swav.sinkhorn_epsilon", 0.02),
    ):
        if not _get(config, key) > 0:
            raise UserError(f"--config.{key}={_get(config, key)} must be above 0 (usual: {usual})")
    for key in ("model.dropout", "byol.momentum"):
        if _get(config, key) >= 1:
            raise UserError(f"--config.{key}={_get(config, key)} must be below 1")
    if config.ensemble.kind == "snapshot" and config.epochs % config.ensemble.num_members:
        raise UserError(
            f"--config.epochs={config.epochs} cannot be shared by {config.ensemble.num_members} "
            "snapshots of equal cycles: use a multiple"
        )
    if 0 < config.swav.queue_length < config.batch_size:
        raise UserError(
            f"--config.swav.queue_length={config.swav.queue_length} is smaller than a batch of "
            f"{config.batch_size}: use 0 for no queue, or a multiple of the batch"
        )


def _get(config: ml_collections.ConfigDict, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


# Settings that version 0.1 called otherwise: {old: new}. Its run directories still load.
RENAMED = {
    "augment.flip": "augment.flip_probability",
    "augment.blur": "augment.blur_probability",
    "augment.noise": "augment.noise_sigma_max",
    "augment.grey_probability": "augment.gray_probability",
    "monitor.neighbours": "monitor.neighbors",
    "concentration.views": "concentration.view_kind",
    "mc_infonce.n_samples": "mc_infonce.num_samples",
    "swav.prototypes": "swav.num_prototypes",
    "swav.iterations": "swav.sinkhorn_iterations",
    "swav.epsilon": "swav.sinkhorn_epsilon",
    "swav.queue": "swav.queue_length",
    "swav.queue_epochs": "swav.queue_start_epochs",
    "swav.local_views": "swav.num_local_views",
    "ensemble.members": "ensemble.num_members",
    "fit_kappa.encoder": "fit_kappa.model",
    "fit_kappa.features": "fit_kappa.feature_layer",
}


def differences(
    old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> dict[str, tuple[object, object]]:
    """Settings in which two configurations differ: {dotted key: (old, new)}."""
    flat_old, flat_new = flatten(old), flatten(new)
    return {
        key: (flat_old.get(key), flat_new.get(key))
        for key in sorted({*flat_old, *flat_new})
        if flat_old.get(key) != flat_new.get(key)
    }


def flatten(config: ml_collections.ConfigDict, prefix: str = "") -> dict[str, object]:
    """All settings of a configuration as {dotted key: value}."""
    flat: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
