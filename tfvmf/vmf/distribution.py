"""The von Mises-Fisher distribution as a TensorFlow Probability distribution."""

import functools
import math
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfvmf.vmf import functions, special
from tfvmf.vmf.marginal import draw_angles


class VonMisesFisher(tfp.distributions.VonMisesFisher):
    """p(x; mu, kappa) = C_d(kappa) exp(kappa mu.x) on the unit sphere of R^d, for any d >= 2.

    Unlike the parent's, gradients are right at every dimension and concentration, also at
    kappa = 0, and samples are fully reparameterized. The parent (NOT_REPARAMETERIZED above d = 3)
    differentiates the proposal of a rejection step but not the rejection, so its gradient by kappa
    is 4 % too low at d = 8; by mu it differentiates a reflection: 0 at mu = e_1 instead of A_d.

    `mean_direction` is mu, [..., d], of length 1; `concentration` is kappa, [...], finite and >= 0.
    Invalid parameters raise ValueError if their values are known (always in eager mode);
    `validate_args=True` also checks symbolic ones.
    """

    @property
    def reparameterization_type(self) -> tfp.distributions.ReparameterizationType:
        """Full, in every dimension."""
        return tfp.distributions.FULLY_REPARAMETERIZED

    def _log_prob(self, x: tf.Tensor) -> tf.Tensor:
        # kappa mu.x = kappa - kappa |x - mu|^2 / 2. The distance keeps its digits in float32 where
        # the product loses them: at kappa = 1e5 the product is off by 0.01.
        mu, kappa, dim = self._tensors()
        kappa64 = tf.cast(kappa, tf.float64)
        at_mode = -special.log_area(dim) - special.log_growth(kappa64, dim)[1]
        return tf.cast(at_mode, self.dtype) - kappa / 2 * _sum(tf.square(x - mu))

    def _mean(self) -> tf.Tensor:
        mu, kappa, dim = self._tensors()
        return functions.mean_resultant_length(kappa, dim)[..., tf.newaxis] * mu

    def _covariance(self) -> tf.Tensor:
        """A_d' along mu and A_d / kappa = (1 - A_d^2 - A_d') / (d - 1) across it."""
        mu, kappa, dim = self._tensors()
        kappa64 = tf.cast(kappa, tf.float64)
        ratio, gap = special.resultant(kappa64, dim)
        along = special.resultant_slope(kappa64, dim)
        across = (gap * (1.0 + ratio) - along) / (dim - 1.0)
        outer = mu[..., :, tf.newaxis] * mu[..., tf.newaxis, :]
        scales = (tf.cast(scale, self.dtype) for scale in (along - across, across))
        more, across = (scale[..., tf.newaxis, tf.newaxis] for scale in scales)
        return more * outer + across * tf.eye(tf.shape(mu)[-1], dtype=self.dtype)

    def _entropy(self) -> tf.Tensor:
        _, kappa, dim = self._tensors()
        return tf.broadcast_to(functions.entropy(kappa, dim), self.batch_shape_tensor())

    def _sample_n(self, n: Any, seed: Any = None) -> tf.Tensor:
        """[n, ..., d]: the angle to mu by inversion, the rest uniform around mu.

        With t = mu.x, a change of kappa moves x along its meridian by dt = (1 - t^2) w dkappa (see
        `marginal`), and a change of mu by dmu moves it by dx = t dmu - (x.dmu) mu. Both are smooth
        for every mu, although the reflection that places x is not.
        """
        mu, kappa, dim = self._tensors()
        one_kappa = kappa.shape.num_elements() == 1
        dtype = tf.float64 if self.dtype == tf.float64 else tf.float32
        batch, size = self.batch_shape_tensor(), tf.shape(mu)[-1]
        shape, count = tf.concat([batch, [size]], axis=0), tf.reduce_prod(batch)
        mu = tf.reshape(tf.broadcast_to(tf.cast(mu, dtype), shape), [count, size])
        kappa = tf.reshape(tf.broadcast_to(tf.cast(kappa, dtype), batch), [count])

        angle_seed, radius_seed, turn_seed = tfp.random.split_seed(seed, n=3, salt="tfvmf_vmf")
        uniform = tf.random.stateless_uniform(
            [1, n * count] if one_kappa else [count, n], seed=angle_seed, dtype=tf.float64
        )
        noise = _normal(n, count, size - 1, (radius_seed, turn_seed), dtype)

        @tf.custom_gradient
        def place(mu: tf.Tensor, kappa: tf.Tensor) -> Any:
            table_kappa = tf.cast(kappa[:1] if one_kappa else kappa, tf.float64)
            angles = draw_angles(uniform, table_kappa, dim)
            y, w = (tf.reshape(tf.transpose(values), [n, count]) for values in angles)
            cosine = tf.cast(1.0 - 2.0 * y, dtype)
            x = _around(mu, cosine, tf.cast(2.0 * tf.sqrt(y * (1.0 - y)), dtype), noise)

            def gradient(d_x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                along_mu, along_x = _sum(d_x * mu), _sum(d_x * x)
                d_mu = tf.reduce_sum(cosine[..., tf.newaxis] * d_x, axis=0)
                d_mu -= tf.reduce_sum(along_mu[..., tf.newaxis] * x, axis=0)
                d_kappa = tf.reduce_sum((along_mu - cosine * along_x) * tf.cast(w, dtype), axis=0)
                once = "samples have first derivatives only"
                prevent = functools.partial(tf.raw_ops.PreventGradient, message=once)
                return prevent(input=d_mu), prevent(input=d_kappa)

            return x, gradient

        samples = place(mu, kappa)
        return tf.cast(tf.reshape(samples, tf.concat([[n], shape], axis=0)), self.dtype)

    def _tensors(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """mu, kappa, and the dimension in float64."""
        mu = tf.convert_to_tensor(self.mean_direction)
        kappa = tf.convert_to_tensor(self.concentration)
        return mu, kappa, tf.cast(functions.last_axis(mu), tf.float64)

    def _sample_control_dependencies(self, samples: tf.Tensor) -> list[tf.Operation]:
        # Checked like mean_direction: same tolerance, and ValueError for known values.
        if not samples.shape[-1:].is_compatible_with(self.event_shape):
            raise ValueError(
                f"value must have the last axis {self.event_shape[-1]}, got {samples.shape}"
            )
        return functions.check_direction(samples, "value", True) if self.validate_args else []

    def _parameter_control_dependencies(self, is_init: bool) -> list[tf.Operation]:
        assertions = []
        for name, parameter, check in (
            ("mean_direction", self.mean_direction, functions.check_direction),
            ("concentration", self.concentration, functions.check_concentration),
        ):
            # Variables may change, so they are checked at each use.
            is_variable = not isinstance(parameter, tf.Tensor)
            if is_init != is_variable:
                assertions += check(tf.convert_to_tensor(parameter), name, self.validate_args)
        return assertions


@tfp.distributions.RegisterKL(VonMisesFisher, VonMisesFisher)
def _kl_vmf_vmf(a: VonMisesFisher, b: VonMisesFisher, name: str | None = None) -> tf.Tensor:
    with tf.name_scope(name or "kl_vmf_vmf"):
        return functions.kl_divergence(
            a.mean_direction, a.concentration, b.mean_direction, b.concentration
        )


def _around(mu: tf.Tensor, cosine: tf.Tensor, sine: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Unit vectors cosine mu + sine v, where v is the direction of the reflected (0, noise).

    The reflection swaps e_1 with mu or -mu, whichever is farther: it maps the span of e_2, ..., e_d
    to the tangent space of mu and never divides by 0.
    """
    first, others = mu[:, 0], mu[:, 1:]
    scale = sine * tf.math.rsqrt(_sum(tf.square(noise)))
    shadow = scale * _sum(noise * others)
    x_first = cosine * first - shadow * tf.where(first < 0.0, -tf.ones_like(first), 1.0)
    weight = cosine - shadow / (1.0 + tf.abs(first))
    x_others = scale[..., tf.newaxis] * noise + weight[..., tf.newaxis] * others
    return tf.concat([x_first[..., tf.newaxis], x_others], axis=-1)


def _normal(
    n: Any, count: tf.Tensor, size: tf.Tensor, seeds: tuple[Any, Any], dtype: tf.DType
) -> tf.Tensor:
    """Standard normal numbers, [n, count, size], by Box and Muller's transform of whole arrays.

    This takes half the time of tf.random.stateless_normal on a CPU, most of a sample's cost: 35
    against 70 ms for 4 million on 2 busy cores. No radius is 0, so no direction is undefined.
    """
    pairs = (size + 1) // 2
    uniform = tf.random.stateless_uniform([n, count, pairs], seed=seeds[0], dtype=dtype)
    radius = tf.sqrt(tf.maximum(-2.0 * tf.math.log1p(-uniform), 1e-12))
    turn = tf.random.stateless_uniform(
        [n, count, pairs], seed=seeds[1], maxval=2.0 * math.pi, dtype=dtype
    )
    return tf.concat([radius * tf.cos(turn), (radius * tf.sin(turn))[..., : size - pairs]], axis=-1)


def _sum(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(values, axis=-1)
