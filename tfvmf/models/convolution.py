"""Convolution that trains with fewer multiplications where that is faster."""

import keras
import tensorflow as tf

from tfvmf.models import winograd

# Measured on 2 cores with AVX2, forward and backward, direct and by Winograd's method:
# [512, 4, 4, 128] 67 and 26 ms, [512, 8, 8, 64] 69 and 38, [64, 16, 16, 128] 101 and 49,
# [64, 8, 8, 256] 122 and 46, [64, 4, 4, 512] 132 and 53. With fewer channels or on larger maps the
# ways to the points and back cost what the products save: [512, 16, 16, 32] 68 and 85,
# [64, 32, 32, 64] 135 and 126.
_CHANNELS = 64
_SIDE = 16


@keras.saving.register_keras_serializable(package="tfvmf")
class Convolution(keras.layers.Conv2D):
    """Keras's convolution, faster to train on a CPU where it is of 3x3 pixels and many channels.

    Only training takes the other way: what is exported and served stays one operation, which
    TensorFlow fuses with what follows.
    """

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Convolves [B, H, W, C]."""
        if training and self._saves_time(inputs):
            return winograd.convolve(inputs, tf.convert_to_tensor(self.kernel))
        return super().call(inputs)

    def _saves_time(self, inputs: tf.Tensor) -> bool:
        """Whether Winograd's method is possible and faster."""
        _, height, width, channels = inputs.shape
        return (
            self.kernel_size == (3, 3)
            and self.strides == self.dilation_rate == (1, 1)
            and self.padding == "same"
            and self.data_format == "channels_last"
            and self.groups == 1
            and not self.use_bias
            and self.activation is keras.activations.linear
            and inputs.dtype in (tf.float32, tf.float64)
            and min(channels, self.filters) >= _CHANNELS
            and None not in (height, width)
            and max(height, width) <= _SIDE
            and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
        )
