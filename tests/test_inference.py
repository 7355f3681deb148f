import numpy as np
import pytest

from tfvmf import inference, models
from tfvmf.data import load_source
from tfvmf.errors import UserError


@pytest.fixture(scope="module")
def encoder():
    return models.build_encoder(width=2, dimension=4, hidden=4)


def test_embeds_in_batches_what_the_encoder_gives_at_once(encoder):
    source = load_source("digits", "test", image_size=8)
    expected = encoder(source.images(0, 25).astype(np.float32) / 255.0, training=False)
    embedder = inference.Embedder(encoder, batch_size=8)  # batches of 8 and 1
    outputs = embedder(source.images(0, 25))
    assert set(outputs) == set(models.OUTPUTS)
    for name, value in outputs.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)


def test_needs_an_image(encoder):
    with pytest.raises(UserError, match="no images"):
        inference.Embedder(encoder)(np.zeros((0, 8, 8, 3), np.uint8))
