"""Installs tfvmf: image embeddings on the sphere that know how sure they are."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
# Read, not imported: the requirements of tfvmf are not installed yet.
INIT = (HERE / "tfvmf" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1]

RAY = ["ray[data]>=2.60,<3", "aiohttp"]  # Ray's Parquet reader imports aiohttp but does not list it
SERVING = ["tensorflow-serving-api>=2.20,<2.22"]
SELECT = ["faiss-cpu>=1.13"]  # neighbors among more than 50,000 rows
ONNX = ["onnx>=1.19", "onnxruntime>=1.23", "tf2onnx>=1.17"]
LITERT = ["ai-edge-litert>=2.1"]
TEST = [
    *(*SERVING, *SELECT, *ONNX, *LITERT),
    *("ipykernel", "mpmath", "nbclient", "openvino>=2026.0", "pytest", "pytest-xdist"),
    "selenium>=4.20",
]
DEV = [*TEST, "import-linter", "mypy", "ruff"]

setuptools.setup(
    name="tfvmf",
    version=VERSION,
    description="Probabilistic contrastive learning with explicit concentration on the hypersphere",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=setuptools.find_packages(include=["tfvmf", "tfvmf.*"]),  # with tfvmf/configs
    package_data={
        "tfvmf": [
            *("py.typed", "models/allowed_ops.txt", "pages/*", "shipped/**/*"),
        ]
    },
    entry_points={"console_scripts": ["tfvmf = tfvmf.programs:main"]},
    python_requires=">=3.11",
    # Lower bounds leave out versions with known vulnerabilities (`make audit`).
    install_requires=[
        "absl-py>=2.1",
        "importlib_resources",  # TFDS imports it to prepare data but does not list it (issue 11212)
        "jinja2>=3.1.6",
        "keras>=3.13.2,<4",
        "matplotlib>=3.9",
        "ml_collections>=1.0",
        "numpy>=2.0",
        "pillow>=13.0.0",
        "pyarrow>=20",
        "scikit-learn>=1.6",
        "scipy>=1.14",
        "tensorboard>=2.20",
        "tensorflow>=2.20,<2.22",
        "tensorflow-datasets>=4.9.8",
        "tensorflow-probability>=0.25,<0.26",
        "tf-keras>=2.20,<2.22",
        "tqdm>=4.66.3",
    ],
    extras_require={
        "test": TEST,
        "dev": DEV,
        "docs": ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.29"],  # for `make docs`
        "serving": SERVING,
        "select": SELECT,
        "onnx": ONNX,
        "litert": LITERT,
        "corruptions": ["imagecorruptions"],
        "hub": ["keras-hub>=0.32,<0.33"],
        "ray": RAY,
        "bench": ["torch==2.13.0"],  # for `make bench`
    },
)
