"""The paper's numbers, by its row names and our names of data and scores."""

_METHODS = ("Model ensembles (+)", "MC dropout (+)", "MCInfoNCE (-)", "Ours (-)")
# Correlation of each method's uncertainty with the severity of a corruption: Spearman's by method
# (Table 1), then Pearson's (appendix).
_CORRELATIONS = """
brightness        -0.829 -1.000 -1.000 -1.000 -0.791 -0.913 -0.915 -0.893
contrast          -0.943 -1.000 -1.000 -1.000 -0.891 -0.882 -0.937 -0.876
defocus_blur      -0.486 -0.600 -0.429 -0.429 -0.687 -0.818 -0.525 -0.802
elastic_transform -0.829 -0.943 -0.943 -0.943 -0.822 -0.862 -0.850 -0.892
fog               -0.943 -1.000 -1.000 -1.000 -0.655 -0.920 -0.913 -0.901
frost             -1.000 -1.000 -1.000 -1.000 -0.986 -0.984 -0.969 -0.949
gaussian_blur     -0.657 -0.829 -0.086 -0.771 -0.776 -0.878 -0.289 -0.845
gaussian_noise    -1.000 -1.000 -1.000 -0.600 -0.919 -0.916 -0.818 -0.737
glass_blur        -0.714 -0.486 -0.714 -0.771 -0.685 -0.664 -0.685 -0.770
impulse_noise     -1.000 -1.000 -0.943 -0.943 -0.993 -0.996 -0.904 -0.927
jpeg_compression  -1.000 -1.000 -1.000 -1.000 -0.918 -0.869 -0.869 -0.959
motion_blur       -0.943 -1.000 -0.943 -0.943 -0.973 -0.987 -0.971 -0.980
pixelate          -1.000 -1.000 -0.829 -0.943 -0.990 -0.972 -0.850 -0.959
saturate          -0.371 -0.543 -0.371 -0.714 -0.350 -0.541 -0.462 -0.563
snow              -0.829 -0.830 -0.600 -0.943 -0.832 -0.835 -0.741 -0.877
spatter           -0.829 -0.829 -0.829 -0.829 -0.846 -0.840 -0.892 -0.887
speckle_noise     -1.000 -1.000 -1.000 -1.000 -0.976 -0.976 -0.923 -0.881
zoom_blur         -0.522 -0.714  0.600 -0.943 -0.551 -0.825  0.648 -0.892
"""
_VALUES = {
    name: [float(value) for value in values]
    for name, *values in map(str.split, _CORRELATIONS.strip().splitlines())
}
TABLE_1, TABLE_1_PEARSON = (
    {
        method: {name: row[first + place] for name, row in _VALUES.items()}
        for place, method in enumerate(_METHODS)
    }
    for first in (0, len(_METHODS))
)

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

# Tables 3 and 4 and the appendix's table of networks: mean Spearman correlation of Table 1 by
# method, embedding dimension, and backbone. SimCLR, 128 and ResNet-50 are the same run.
TABLE_3 = {"simclr": -0.883, "simsiam": -0.846, "byol": -0.835, "swav": -0.865}
TABLE_4 = {64: -0.768, 128: -0.883, 256: -0.844, 384: -0.901}
TABLE_NETWORKS = {"resnet18": -0.908, "resnet34": -0.876, "resnet50": -0.883}
