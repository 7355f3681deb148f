"""Every setting of a run, its default and its bounds. Nothing here needs TensorFlow.

The settings of a method are declared by the method (`Method.settings`), all others here.
"""

from ml_collections import ConfigDict

from tfvmf import methods, settings
from tfvmf.errors import UserError
from tfvmf.settings import Setting, differences, flatten

__all__ = ["RENAMED", "declared", "default_config", "differences", "flatten", "validate"]

_STRATEGIES = ("default", "mirrored", "multi_worker")

SETTINGS: dict[str, Setting] = {
    "name": Setting("default", "the first part of the run directory's name"),
    "method": Setting("simclr_vmf", "the method to train"),
    "strategy": Setting("default", "how a batch is spread over devices", choices=_STRATEGIES),
    "seed": Setting(0, "seed of everything that is random", low=0),
    "epochs": Setting(100, "passes over the training images", low=1),
    "minutes": Setting(0.0, "chooses epochs to train for about this long; 0: use epochs", low=0),
    "batch_size": Setting(256, "images per step, over all replicas; each becomes views", low=2),
    "precision": Setting(
        "float32", "type in which layers compute", choices=("float32", "mixed_bfloat16")
    ),
    "data.source": Setting("digits", "digits, a TFDS name, folder:/path or npz:/path"),
    "data.train_split": Setting("train", "the split to train on"),
    "data.eval_split": Setting("test", "the split for the monitor and evaluations"),
    "data.eval_source": Setting("", "labeled data to evaluate on; empty: data.source"),
    "data.data_dir": Setting("", "where TFDS finds prepared data sets"),
    "data.image_size": Setting(32, "height and width of images", low=8, below=8193),
    "data.view_share": Setting(
        1.0, "size of training views as a share of data.image_size: smaller is faster", above=0
    ),
    "data.memory_limit_gib": Setting(2.0, "larger data sets are read from disk", low=0),
    "data.reserve": Setting(
        0.0, "training images kept for calibration: a share if below 1, else a number", low=0
    ),
    "data.max_pixels": Setting(settings.MAX_PIXELS, "larger images are refused, undecoded", low=1),
    # See tfvmf.data.Augmentation for details and bounds.
    "augment.crop_min": Setting(0.2, "smallest crop, as a share of the area"),
    "augment.crop_max": Setting(1.0, "largest crop, as a share of the area"),
    "augment.ratio_min": Setting(3 / 4, "narrowest aspect ratio of a crop"),
    "augment.ratio_max": Setting(4 / 3, "widest aspect ratio of a crop"),
    "augment.flip_probability": Setting(0.5, "probability of a mirror image"),
    "augment.brightness": Setting(0.3, "strength of the brightness jitter"),
    "augment.contrast": Setting(0.3, "strength of the contrast jitter"),
    "augment.saturation": Setting(0.3, "strength of the saturation jitter"),
    "augment.hue": Setting(0.1, "strength of the hue jitter"),
    "augment.jitter_probability": Setting(0.8, "probability of the color jitter"),
    "augment.gray_probability": Setting(0.2, "probability of a gray view"),
    "augment.blur_probability": Setting(0.0, "probability of a Gaussian blur"),
    "augment.blur_sigma_min": Setting(0.1, "smallest sigma of the blur, in pixels"),
    "augment.blur_sigma_max": Setting(2.0, "largest sigma of the blur, in pixels"),
    "augment.noise_sigma_max": Setting(0.0, "largest sigma of Gaussian noise"),
    "augment.noise_probability": Setting(1.0, "probability of noise"),
    "model.backbone": Setting(
        "resnet18",
        "the network: a name, applications:NAME, hub:PRESET or keras:/path/model.keras",
        parse=settings.parse_backbone,
    ),
    "model.weights": Setting(
        "", "for applications: and hub:, replaces the trained weights: none, or a .weights.h5 file"
    ),
    # For networks that are not built in; found by rule if empty.
    "model.input_range": Setting("", "pixel range", choices=("", *settings.INPUT_RANGES)),
    "model.feature_layer": Setting("", "the output or layer to use as features"),
    "model.level_layers": Setting(
        "", "layers that the concentration head sees, separated by commas; none: only the features"
    ),
    "model.freeze_stages": Setting(0, "number of first stages to freeze; 99: all", low=0),
    "model.width": Setting(64, "channels of the network's first stage", low=1, below=4097),
    "model.stem": Setting("cifar", "first layers: small or large images", choices=settings.STEMS),
    "model.dimension": Setting(128, "length of the mean direction", low=2, below=65537),
    "model.hidden": Setting(512, "units of the heads' hidden layers", low=1, below=65537),
    "model.dropout": Setting(
        0.0, "probability of dropping a channel or a hidden unit of a head", low=0, below=1
    ),
    "model.one_pass": Setting(
        False, "views of one size share a pass and its batch statistics; otherwise a pass per view"
    ),
    "concentration.align_weight": Setting(0.05, "weight of the alignment term", low=0),
    "concentration.penalty_weight": Setting(0.005, "weight of the l2 regularizer", low=0),
    "concentration.regularizer": Setting(
        "l2", "the paper's l2, or vmf: the exact -log C(kappa)", choices=settings.REGULARIZERS
    ),
    "concentration.initial": Setting(0.0, "kappa of an untrained head; 0: by method", low=0),
    "concentration.levels": Setting(
        "last", "what the head sees: the features, or all levels", choices=settings.LEVELS
    ),
    "concentration.view_kind": Setting(
        "augment", "kappa learns from views, or also from damaged ones", choices=("augment", "wide")
    ),
    "ensemble.num_members": Setting(1, "networks trained into one run directory", low=1),
    "ensemble.kind": Setting(
        "seeds", "runs of different seeds, or cycle ends of one run", choices=("seeds", "snapshot")
    ),
    "optimizer.name": Setting(
        "adam", "adam, sgd, or muon at rates of about 0.03", choices=("adam", "sgd", "muon")
    ),
    "optimizer.learning_rate": Setting(1e-3, "highest rate, after the warm-up", low=0),
    "optimizer.backbone_rate": Setting(1.0, "the backbone's rate, relative to the heads'", low=0),
    "optimizer.momentum": Setting(0.9, "momentum of sgd and muon", low=0),
    "optimizer.weight_decay": Setting(1e-6, "decoupled; not for biases and norms", low=0),
    "optimizer.warmup_epochs": Setting(10.0, "epochs in which the learning rate rises", low=0),
    "monitor.every_epochs": Setting(5.0, "interval of measurements; 0: never", low=0),
    "monitor.neighbors": Setting(20, "k of the k-NN accuracy", low=1),
    "monitor.bank_images": Setting(10_000, "maximum number of labeled images that vote", low=1),
    "monitor.query_images": Setting(2_000, "maximum number of images to classify", low=1),
    "checkpoint.every_epochs": Setting(1.0, "interval of checkpoints", low=0.001),
    "checkpoint.keep": Setting(3, "number of newest checkpoints to keep", low=1),
    "log_every_steps": Setting(10, "interval of log lines", low=1),
}

# Settings with other names in version 0.1: {old: new}. Its run directories still load.
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
    "fit_kappa.features": "model.feature_layer",
    # Names of a later version, before every backbone had these settings.
    "fit_kappa.feature_layer": "model.feature_layer",
    "fit_kappa.input_range": "model.input_range",
    "fit_kappa.level_layers": "model.level_layers",
}


def declared() -> dict[str, Setting]:
    """All settings by their dotted names: those of every run, then those of each method."""
    found = dict(SETTINGS)
    for method in methods.METHODS.values():
        found |= {f"{method.section}.{key}": value for key, value in method.settings.items()}
    return found


def default_config() -> ConfigDict:
    """The paper's settings, on the built-in digits; `configs/` holds the differences."""
    config = ConfigDict()
    for key, setting in declared().items():
        section, _, name = key.rpartition(".")
        if section and section not in config:
            config[section] = ConfigDict()
        (config[section] if section else config)[name] = setting.default
    return config


def view_size(config: ConfigDict) -> int:
    """Height and width of training views, in pixels."""
    size = round(config.data.view_share * config.data.image_size)
    if not 8 <= size <= config.data.image_size:
        raise UserError(
            f"--config.data.view_share={config.data.view_share} makes views of {size} pixels: "
            f"expected 8 to {config.data.image_size} (--config.data.image_size)"
        )
    return size


def validate(config: ConfigDict) -> None:
    """Raises a UserError that names the first invalid setting."""
    methods.check_name(config.method)
    values = flatten(config)
    for key, setting in declared().items():
        setting.check(key, values[key])
    for method in methods.METHODS.values():
        method.check(config)
    if config.minutes and config.strategy == "multi_worker":
        raise UserError("--config.minutes is for one machine: with workers, set --config.epochs")
    if config.minutes and config.ensemble.kind == "seeds" and config.ensemble.num_members > 1:
        raise UserError("--config.minutes is for one run: for an ensemble, set --config.epochs")
    view_size(config)
    if config.ensemble.kind == "snapshot" and config.epochs % config.ensemble.num_members:
        raise UserError(
            f"--config.epochs={config.epochs} cannot be shared by {config.ensemble.num_members} "
            "snapshots of equal cycles: use a multiple"
        )
