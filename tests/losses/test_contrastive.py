import numpy as np
import pytest
import tensorflow as tf

from tfvmf import losses


def unit(rng, rows, dimension):
    x = rng.normal(size=(rows, dimension))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def reference(z1, z2, temperature):
    """The equation, term by term, in float64."""
    z = np.concatenate([z1, z2]).astype(np.float64)
    count = len(z1)
    total = 0.0
    for i in range(2 * count):
        j = (i + count) % (2 * count)
        others = [k for k in range(2 * count) if k != i]
        denominator = sum(np.exp(z[i] @ z[k] / temperature) for k in others)
        total -= np.log(np.exp(z[i] @ z[j] / temperature) / denominator)
    return total / (2 * count)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_equals_the_equation(rng, temperature):
    z1, z2 = unit(rng, 7, 5), unit(rng, 7, 5)
    loss = losses.nt_xent(z1, z2, temperature=temperature)
    assert float(loss) == pytest.approx(reference(z1, z2, temperature), rel=1e-5)


def test_is_symmetric_in_the_views(rng):
    z1, z2 = unit(rng, 6, 4), unit(rng, 6, 4)
    assert float(losses.nt_xent(z1, z2)) == pytest.approx(float(losses.nt_xent(z2, z1)), rel=1e-6)


def test_closed_form_of_orthogonal_pairs():
    # Partners agree perfectly, all else is orthogonal: -log(e^(1/t) / (e^(1/t) + 2B - 2)).
    z = np.eye(4, dtype=np.float32)
    expected = -np.log(np.exp(2.0) / (np.exp(2.0) + 6.0))
    assert float(losses.nt_xent(z, z, temperature=0.5)) == pytest.approx(expected, rel=1e-6)


def test_shares_of_a_batch_average_to_the_whole(rng):
    z1, z2 = unit(rng, 8, 5), unit(rng, 8, 5)
    shares = [
        losses.nt_xent(
            z1[row : row + 4], z2[row : row + 4], candidates_1=z1, candidates_2=z2, first_row=row
        )
        for row in (0, 4)
    ]
    assert float(sum(shares) / 2) == pytest.approx(float(losses.nt_xent(z1, z2)), rel=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("most", [1, 64 * 3, 64 * 8, 64 * 100])
def test_in_parts_of_any_size_it_and_its_gradient_are_the_same(rng, most, known):
    pair = [tf.constant(unit(rng, 8, 5)) for _ in range(2)]
    spec = tf.TensorSpec([8 if known else None, 5])

    @tf.function(input_signature=[spec, spec])
    def loss_and_gradient(z1, z2):
        loss = losses.nt_xent(
            z1[2:6],
            z2[2:6],
            candidates_1=z1,
            candidates_2=z2,
            first_row=2,
            max_matrix_elements=most,
        )
        return loss, *tf.gradients(loss, [z1, z2])

    with tf.GradientTape() as tape:
        tape.watch(pair)
        plain = losses.nt_xent(
            pair[0][2:6], pair[1][2:6], candidates_1=pair[0], candidates_2=pair[1], first_row=2
        )
    expected = tape.gradient(plain, pair)
    loss, *gradients = loss_and_gradient(*pair)
    assert float(loss) == pytest.approx(float(plain), rel=1e-6)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_survives_tiny_temperatures_and_equal_views(rng):
    z = tf.Variable(np.repeat(unit(rng, 1, 3), 4, axis=0))
    with tf.GradientTape() as tape:
        loss = losses.nt_xent(z, z, temperature=1e-4)
    assert float(loss) == pytest.approx(np.log(7.0), rel=1e-5)
    assert np.isfinite(tape.gradient(loss, z).numpy()).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_refuses_a_temperature_that_is_not_positive(rng, temperature):
    z = unit(rng, 2, 3)
    with pytest.raises(ValueError, match="temperature"):
        losses.nt_xent(z, z, temperature=temperature)


def test_refuses_half_the_candidates(rng):
    z = unit(rng, 2, 3)
    with pytest.raises(ValueError, match="together"):
        losses.nt_xent(z, z, candidates_1=z)
