"""What a configuration says of an encoder that was trained elsewhere."""

import ml_collections


def is_foreign(config: ml_collections.ConfigDict) -> bool:
    """Whether the encoder was trained elsewhere, and only its head is ours."""
    return config.method == "fit_kappa" and config.fit_kappa.kind != "run"


def takes_features(config: ml_collections.ConfigDict) -> bool:
    """Whether it is a head without an encoder: features in instead of images."""
    return is_foreign(config) and config.fit_kappa.kind == "features"


def base_method(config: ml_collections.ConfigDict) -> str:
    """The method that trained, or trains, the directions: without `_vmf`."""
    name = config.fit_kappa.method if config.method == "fit_kappa" else config.method
    return name.removesuffix("_vmf")
