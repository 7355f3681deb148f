"""The embedded data set: 1,797 handwritten digits that ship inside scikit-learn."""

import numpy as np

from tfvmf.data import splits
from tfvmf.data.base import ArraySource, Request, Source
from tfvmf.data.images import resize_image
from tfvmf.errors import UserError

# Of each nine digits two are for testing: 400 of 1,797. Nine has no factor in common with the
# runs of ten digits that the writers filled in, so that the classes stay balanced.
_PERIOD, _TEST = 9, (1, 5)


def load(request: Request) -> Source:
    """`digits`: 1,397 (train) and 400 (test) RGB images, scaled up from 8x8 gray of 17 levels."""
    if request.target:
        raise UserError(f"{request.spec}: digits takes nothing after the colon; write 'digits'")
    splits.check(request.spec, request.split)
    from sklearn.datasets import load_digits

    digits = load_digits()
    test = np.isin(np.arange(len(digits.target)) % _PERIOD, _TEST)
    chosen = {"train": ~test, "test": test, "all": np.ones_like(test)}[request.split]
    gray = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    return ArraySource(
        request,
        np.stack([resize_image(image, request.image_size) for image in gray]),
        labels=digits.target[chosen],
        class_names=[str(digit) for digit in range(10)],
    )
