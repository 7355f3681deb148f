"""A concentration head at the optimum of its loss, for views that stay the same."""

import keras
import tensorflow as tf


def fit_head(method, views, *, steps=300, learning_rate=0.02):
    """Trains the head; returns cosines and kappas of each view."""
    optimizer = keras.optimizers.Adam(learning_rate)
    head = method.trainable_variables
    optimizer.build(head)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = method.loss(views)["loss"]
        optimizer.apply(tape.gradient(loss, head), head)

    for _ in range(steps):
        step()
    measured = method.head_objective(views)
    return measured.cosines, [view["concentration"] for view in measured.outputs]
