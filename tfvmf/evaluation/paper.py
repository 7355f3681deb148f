"""The paper's printed numbers, to lay beside ours. Its names of rows, ours of data and scores."""

# Table 1: Spearman correlation of each method's uncertainty with the severity of a corruption.
TABLE_1: dict[str, dict[str, float]] = {}
# Appendix: the same with Pearson's correlation.
TABLE_1_PEARSON: dict[str, dict[str, float]] = {}

_NAMES = (
    "brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost",
    "gaussian_blur", "gaussian_noise", "glass_blur", "impulse_noise", "jpeg_compression",
    "motion_blur", "pixelate", "saturate", "snow", "spatter", "speckle_noise", "zoom_blur",
)  # fmt: skip


def _row(table: dict[str, dict[str, float]], method: str, *values: float) -> None:
    table[method] = dict(zip(_NAMES, values, strict=True))


_row(
    TABLE_1, "Model ensembles (+)",
    -0.829, -0.943, -0.486, -0.829, -0.943, -1.000, -0.657, -1.000, -0.714,
    -1.000, -1.000, -0.943, -1.000, -0.371, -0.829, -0.829, -1.000, -0.522,
)  # fmt: skip
_row(
    TABLE_1, "MC dropout (+)",
    -1.000, -1.000, -0.600, -0.943, -1.000, -1.000, -0.829, -1.000, -0.486,
    -1.000, -1.000, -1.000, -1.000, -0.543, -0.830, -0.829, -1.000, -0.714,
)  # fmt: skip
_row(
    TABLE_1, "MCInfoNCE (-)",
    -1.000, -1.000, -0.429, -0.943, -1.000, -1.000, -0.086, -1.000, -0.714,
    -0.943, -1.000, -0.943, -0.829, -0.371, -0.600, -0.829, -1.000, 0.600,
)  # fmt: skip
_row(
    TABLE_1, "Ours (-)",
    -1.000, -1.000, -0.429, -0.943, -1.000, -1.000, -0.771, -0.600, -0.771,
    -0.943, -1.000, -0.943, -0.943, -0.714, -0.943, -0.829, -1.000, -0.943,
)  # fmt: skip
_row(
    TABLE_1_PEARSON, "Model ensembles (+)",
    -0.791, -0.891, -0.687, -0.822, -0.655, -0.986, -0.776, -0.919, -0.685,
    -0.993, -0.918, -0.973, -0.990, -0.350, -0.832, -0.846, -0.976, -0.551,
)  # fmt: skip
_row(
    TABLE_1_PEARSON, "MC dropout (+)",
    -0.913, -0.882, -0.818, -0.862, -0.920, -0.984, -0.878, -0.916, -0.664,
    -0.996, -0.869, -0.987, -0.972, -0.541, -0.835, -0.840, -0.976, -0.825,
)  # fmt: skip
_row(
    TABLE_1_PEARSON, "MCInfoNCE (-)",
    -0.915, -0.937, -0.525, -0.850, -0.913, -0.969, -0.289, -0.818, -0.685,
    -0.904, -0.869, -0.971, -0.850, -0.462, -0.741, -0.892, -0.923, 0.648,
)  # fmt: skip
_row(
    TABLE_1_PEARSON, "Ours (-)",
    -0.893, -0.876, -0.802, -0.892, -0.901, -0.949, -0.845, -0.737, -0.770,
    -0.927, -0.959, -0.980, -0.959, -0.563, -0.877, -0.887, -0.881, -0.892,
)  # fmt: skip

# Figure 2B: predictions on CIFAR-10's test set, and the range of p over 50 bootstrap rounds.
FAILURE = {"correct": 8554, "wrong": 1446, "smallest_p": 6.42e-20, "largest_p": 1.15e-6}

# Table 2: AUROC of OOD detection, {(in, out): {score: AUROC}}.
TABLE_2: dict[tuple[str, str], dict[str, float]] = {
    ("cifar10", "cifar100"): {"f_res": 0.9658, "kappa": 0.8162, "f_res+kappa": 0.9677},
    ("cifar10", "mnist"): {"f_res": 0.9929, "kappa": 0.6783, "f_res+kappa": 0.9937},
    ("cifar100", "cifar10"): {"f_res": 0.8653, "kappa": 0.6312, "f_res+kappa": 0.8794},
    ("cifar100", "mnist"): {"f_res": 0.9769, "kappa": 0.9390, "f_res+kappa": 0.9774},
    ("mnist", "cifar10"): {"f_res": 0.9993, "kappa": 0.9979, "f_res+kappa": 0.9999},
    ("mnist", "cifar100"): {"f_res": 0.9998, "kappa": 0.9951, "f_res+kappa": 1.0000},
}

# Tables 3 and 4 and the appendix's on networks: mean Spearman correlation of Table 1 by method,
# dimension of the embedding, and backbone. SimCLR's, 128's and ResNet-50's are the same run.
TABLE_3 = {"simclr": -0.883, "simsiam": -0.846, "byol": -0.835, "swav": -0.865}
TABLE_4 = {64: -0.768, 128: -0.883, 256: -0.844, 384: -0.901}
TABLE_NETWORKS = {"resnet18": -0.908, "resnet34": -0.876, "resnet50": -0.883}
