"""Layers against XLA's own operations and brute force; torsos and streams against what defines them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.networks.heads import ActionStreams, Stream, StreamConfig
from qemrl.networks.layers import Convolution, Dense, Linear, NoisyLinear, patches
from qemrl.networks.torsos import (
    Flatten,
    JoinedReaders,
    MinAtarConvolution,
    NatureConvolutions,
    make_torso,
    num_features,
)
from qemrl.types import EnvSpec, Part

ATARI = EnvSpec("frames", (4, 84, 84), "uint8", 6, stacked_frames=4)
MINATAR = EnvSpec("board", (10, 10, 7), "bool", 6)
VECTOR = EnvSpec("vector", (3,), "float32", 2, observation_low=(-1.0, 0.0, 10.0), observation_high=(1.0, 4.0, 30.0))


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def count_parameters(module: eqx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(module) if eqx.is_array(leaf))


def xla_kernel(layer: Convolution, channels: int) -> jax.Array:
    """The weights as [size, size, channels, outputs].

    A patch lists blocks row by row, in each its pixels row by row, in each the channels: the axes of the weights are
    outputs, block row, block column, pixel row, pixel column, channel.
    """
    reach, stride = layer.size // layer.stride, layer.stride
    kernel = layer.linear.weight.reshape(-1, reach, reach, stride, stride, channels)
    return kernel.transpose(1, 3, 2, 4, 5, 0).reshape(layer.size, layer.size, channels, -1)


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize(
    ("size", "stride", "padding", "rows", "columns"),
    [(8, 4, 0, 21, 30), (8, 4, 1, 19, 15), (4, 2, 0, 9, 11), (3, 1, 0, 7, 5), (3, 1, 1, 5, 7)],
)
def test_a_convolution_and_its_gradient_are_those_of_xla(size, stride, padding, rows, columns, product):
    channels = 3
    layer = Convolution(channels, 5, size, stride, padding, jax.random.key(0), product)
    images = normal(1, 2, rows, columns, channels)

    def of_xla(layer, images):
        edge = (padding, padding)
        maps = jax.lax.conv_general_dilated(
            images,
            xla_kernel(layer, channels),
            (stride, stride),
            (edge, edge),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision="highest",
        )
        return maps + layer.linear.bias[None, None, None, :]

    @jax.jit
    def both(layer, images):
        def scalar(convolve):
            return lambda layer, images: jnp.sum(jnp.sin(convolve(layer, images)))

        ours, theirs = (lambda layer, images: layer(images)), of_xla
        gradients = [jax.grad(scalar(each), argnums=(0, 1))(layer, images) for each in (ours, theirs)]
        return (ours(layer, images), theirs(layer, images)), gradients

    (ours, theirs), (our_gradient, their_gradient) = both(layer, images)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for one, other in zip(jax.tree.leaves(our_gradient), jax.tree.leaves(their_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("size", "stride", "rows", "columns"), [(4, 2, 7, 9), (3, 1, 4, 6), (8, 4, 13, 8)])
def test_patches_hold_the_pixels_of_their_window_block_by_block(size, stride, rows, columns):
    images = np.arange(2 * rows * columns * 2, dtype=np.float32).reshape(2, rows, columns, 2)
    found = np.asarray(patches(jnp.asarray(images), size, stride))
    down, across = (rows - size) // stride + 1, (columns - size) // stride + 1
    assert found.shape == (2, down, across, size * size * 2)
    for i in range(down):
        for j in range(across):
            expected = [
                images[:, i * stride + r + y, j * stride + c + x]
                for r in range(0, size, stride)
                for c in range(0, size, stride)
                for y in range(stride)
                for x in range(stride)
            ]
            np.testing.assert_array_equal(found[:, i, j], np.concatenate(expected, axis=-1))


def test_a_convolution_whose_size_is_no_multiple_of_its_stride_is_refused():
    with pytest.raises(ValueError, match="got 3 and 2"):
        Convolution(1, 1, 3, 2, 0, jax.random.key(0))


def test_first_weights_are_uniform_within_the_root_of_the_fan_in():
    layer = Linear(100, 400, jax.random.key(0))
    weights = np.asarray(layer.weight)
    assert np.abs(weights).max() <= 0.1
    assert np.abs(weights).max() > 0.0999
    assert abs(weights.std() - 0.1 / np.sqrt(3)) < 1e-3
    assert 0.09 < np.abs(np.asarray(layer.bias)).max() <= 0.1


def test_a_noisy_layer_without_a_key_has_its_mean_weights():
    layer, inputs = NoisyLinear(4, 3, jax.random.key(0)), normal(0, 5, 4)
    expected = np.asarray(inputs) @ np.asarray(layer.mean.weight).T + np.asarray(layer.mean.bias)
    np.testing.assert_allclose(layer(inputs, None), expected, rtol=1e-5, atol=1e-6)


def test_one_draw_of_noise_serves_the_batch_and_is_factorized():
    """From unit inputs the noise on the weights can be read: ε_w = f(ε_out) f(ε_in)ᵀ of rank one, ε_b = f(ε_out)."""
    layer = NoisyLinear(4, 3, jax.random.key(0))
    inputs = jnp.concatenate([jnp.zeros((1, 4)), jnp.eye(4), jnp.ones((2, 4))])
    noise = np.asarray(layer(inputs, jax.random.key(7)) - layer(inputs, None)) / 0.25  # 0.5 / √4
    bias, weight = noise[0], (noise[1:5] - noise[0]).T
    np.testing.assert_allclose(noise[5], noise[6], rtol=1e-5)  # the same draw in each row
    np.testing.assert_allclose(noise[5], bias + weight.sum(axis=1), atol=1e-5)
    assert np.abs(weight).min() > 1e-3
    columns = weight[0] / bias[0]
    np.testing.assert_allclose(weight, np.outer(bias, columns), atol=1e-5)
    other = np.asarray(layer(inputs, jax.random.key(8)) - layer(inputs, None)) / 0.25
    assert np.abs(other - noise).max() > 0.1


def test_the_factors_of_the_noise_are_signed_roots_of_normal_draws():
    """f(ε) = sign(ε) √|ε| has E f = 0, E f² = E|ε| = √(2/π) and E f⁴ = 1."""
    layer = NoisyLinear(1, 20_000, jax.random.key(0))
    draws = np.asarray(layer(jnp.zeros((1, 1)), jax.random.key(3)) - layer(jnp.zeros((1, 1)), None))[0] / 0.5
    assert abs(draws.mean()) < 0.03
    assert abs((draws**2).mean() - np.sqrt(2 / np.pi)) < 0.02
    assert abs((draws**4).mean() - 1) < 0.05


def test_the_gradient_reaches_means_and_scales_of_a_noisy_layer():
    layer, inputs = NoisyLinear(4, 3, jax.random.key(0)), normal(0, 5, 4)
    gradient = jax.jit(jax.grad(lambda layer: jnp.sum(jnp.sin(layer(inputs, jax.random.key(1))))))(layer)
    for leaf in jax.tree.leaves(gradient):
        assert np.abs(np.asarray(leaf)).min() > 0


def test_layers_of_a_stream_have_noise_of_their_own():
    stream = Stream(StreamConfig((3,), dueling=False, noisy=True), 3, 3, jax.random.key(0))
    first, second = stream.layers
    hidden = jnp.zeros((1, 3))
    keys = jax.random.split(jax.random.key(1), 2)
    assert np.abs(np.asarray(first(hidden, keys[0]) - first(hidden, None))).min() > 0
    expected = second(jax.nn.relu(first(hidden, keys[0])), keys[1])
    np.testing.assert_allclose(stream(hidden, jax.random.key(1)), expected, rtol=1e-5)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
def test_advantages_average_to_zero_over_actions_for_each_output(outputs, noisy):
    """So the mean over actions is the state's stream, for each quantile and each logit by itself."""
    config = StreamConfig((8,), dueling=True, noisy=noisy)
    streams, features = ActionStreams(config, 6, 3, outputs, jax.random.key(0)), normal(0, 4, 6)
    key = jax.random.key(5) if noisy else None
    found = streams(features, key)
    assert found.shape == (4, 3, outputs)
    assert streams.value is not None
    state = streams.value(features, None if key is None else jax.random.split(key)[1])
    np.testing.assert_allclose(np.asarray(found).mean(axis=1), state, rtol=1e-4, atol=1e-5)
    assert np.asarray(found).std(axis=1).min() > 1e-4


def test_without_dueling_there_is_no_value_stream():
    plain = ActionStreams(StreamConfig((), False, False), 6, 3, 5, jax.random.key(0))
    dueling = ActionStreams(StreamConfig((), True, False), 6, 3, 5, jax.random.key(0))
    assert plain.value is None
    assert count_parameters(plain) == 7 * 15
    assert count_parameters(dueling) == 7 * 15 + 7 * 5


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (ATARI, NatureConvolutions),
        (MINATAR, MinAtarConvolution),
        (VECTOR, Flatten),
        (EnvSpec("small frames", (4, 20, 20), "uint8", 2, stacked_frames=4), MinAtarConvolution),
        (EnvSpec("table", (5, 4), "float32", 2), Flatten),
        (EnvSpec("colors", (84, 84, 3), "uint8", 2), NatureConvolutions),
        (EnvSpec("gray", (36, 40), "uint8", 2), NatureConvolutions),
        (EnvSpec("small colors", (3, 35, 90), "uint8", 2), MinAtarConvolution),
        (EnvSpec("stacked colors", (4, 40, 40, 3), "uint8", 2, stacked_frames=4), NatureConvolutions),
        (EnvSpec("stacked vectors", (4, 3), "float32", 2, stacked_frames=4), Flatten),
    ],
    ids=lambda value: getattr(value, "id", getattr(value, "__name__", "")),
)
def test_the_torso_is_chosen_from_the_observation(spec, kind):
    assert isinstance(make_torso("auto", spec, jax.random.key(0)).reader, kind)


@pytest.mark.parametrize(
    ("shape", "frames", "to_image"),
    [
        ((4, 5, 2), 1, lambda array: array),
        ((2, 4, 5), 1, lambda array: array.transpose(1, 2, 0)),
        ((4, 2, 4), 1, lambda array: array),  # a tie: the channels are last
        ((4, 5), 1, lambda array: array[..., None]),
        ((3, 4, 5), 3, lambda array: array.transpose(1, 2, 0)),
        ((3, 4, 5, 2), 3, lambda array: array.transpose(1, 2, 0, 3).reshape(4, 5, 6)),
        ((3, 2, 4, 5), 3, lambda array: array.transpose(2, 3, 0, 1).reshape(4, 5, 6)),
        ((3, 4, 5, 2), 1, lambda array: array.transpose(1, 2, 0, 3).reshape(4, 5, 6)),
    ],
)
def test_images_are_read_with_their_channels_last_and_in_units_of_one(shape, frames, to_image):
    """Whatever the order of axes, as the small network reads the same image with the channels last."""
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    spec = EnvSpec("image", shape, "uint8", 2, stacked_frames=frames)
    reader, image = make_torso("auto", spec, jax.random.key(0)).reader, to_image(array)
    expected = MinAtarConvolution(image.shape[-1], False, jax.random.key(0))(jnp.asarray(image[None] / np.float32(255)))
    np.testing.assert_allclose(reader(jnp.asarray(array[None])), expected, rtol=1e-5, atol=1e-6)
    floats = spec._replace(observation_dtype="float32", observation_low=(-1.0,), observation_high=(509.0,))
    if len(shape) - (frames > 1) > 2:  # floats with two axes are no image
        reader = make_torso("auto", floats, jax.random.key(0)).reader
        scaled = array[None].astype(np.float32) * 2 - 1
        np.testing.assert_allclose(reader(jnp.asarray(scaled)), expected, rtol=1e-4, atol=1e-5)


PARTS = (
    Part(("a",), (2, 3, 1), "uint8"),
    Part(("b",), (2,), "float32", (-1.0, 0.0), (1.0, 4.0)),
    Part(("c",), (), "float32", (0.0,) * 3, (1.0,) * 3, (3,), (5,)),
    Part(("d",), (2,), "bool"),
)


@pytest.mark.parametrize("of_bytes", [True, False])
def test_parts_are_read_by_the_readers_that_fit_and_joined(of_bytes):
    image, vector = np.array([[[51], [102], [0]], [[255], [7], [9]]], np.uint8), np.array([0.5, 3.0], np.float32)
    number, flags = np.array([0, 1, 0], np.float32), np.array([True, False])
    pieces = [image, vector, number, flags]
    joined = [np.frombuffer(piece.tobytes(), np.uint8) if of_bytes else np.ravel(piece) for piece in pieces]
    stored = np.concatenate(joined if of_bytes else [piece.astype(np.float32) for piece in joined])
    spec = EnvSpec("parts", stored.shape, stored.dtype.name, 2, parts=PARTS)
    torso = make_torso("auto", spec, jax.random.key(0), (7,))
    assert isinstance(torso.reader, JoinedReaders)
    (convolution, *flattens), features = torso.reader.readers, np.asarray(torso.reader(jnp.asarray(stored[None])))
    assert isinstance(convolution, MinAtarConvolution)
    assert all(isinstance(each, Flatten) for each in flattens)
    np.testing.assert_allclose(features[:, :96], convolution(jnp.asarray(image[None])), rtol=1e-6)
    np.testing.assert_allclose(features[0, 96:], [0.5, 0.5, -1, 1, -1, 1, 0], rtol=1e-6)
    assert num_features(torso, spec) == 7
    flat = make_torso("mlp", spec, jax.random.key(0))
    np.testing.assert_allclose(flat(jnp.asarray(stored[None]))[0, :4], [-0.6, -0.2, -1, 1], rtol=1e-5)
    with pytest.raises(ValueError, match="at least 36x36, parts has 2x3"):
        make_torso("nature", spec, jax.random.key(0))
    with pytest.raises(ValueError, match=r"needs an image, with three axes, parts has \[\(2,\), \(\)\]; use mlp"):
        make_torso("minatar", spec._replace(parts=PARTS[1:3]), jax.random.key(0))


def test_a_torso_can_be_named_where_it_fits():
    colors = EnvSpec("colors", (84, 84, 3), "uint8", 2)
    assert num_features(make_torso("nature", colors, jax.random.key(0)), colors) == 3136
    assert isinstance(make_torso("mlp", MINATAR, jax.random.key(0)).reader, Flatten)
    with pytest.raises(ValueError, match=r"three axes, vector has \(3,\)"):
        make_torso("minatar", VECTOR, jax.random.key(0))
    with pytest.raises(ValueError, match="at least 36x36"):
        make_torso("nature", MINATAR, jax.random.key(0))


def test_the_nature_torso_has_3136_features_and_the_papers_parameters():
    torso = make_torso("auto", ATARI, jax.random.key(0))
    assert num_features(torso, ATARI) == 3136
    assert count_parameters(torso) == (8 * 8 * 4 + 1) * 32 + (4 * 4 * 32 + 1) * 64 + (3 * 3 * 64 + 1) * 64


def test_the_minatar_torso_has_1600_features_and_one_layer_of_16_channels():
    torso = make_torso("auto", MINATAR, jax.random.key(0))
    assert num_features(torso, MINATAR) == 1600
    assert count_parameters(torso) == (3 * 3 * 7 + 1) * 16


def test_frames_are_read_as_channels_scaled_to_one():
    """A picture of 255s in float units is one of ones: the first layer gives bias + Σ weights everywhere."""
    spec = EnvSpec("frames", (2, 36, 36), "uint8", 2, stacked_frames=2)
    torso = NatureConvolutions(2, False, jax.random.key(0))
    frames = np.zeros((2, 2, 36, 36), np.uint8)
    frames[0] = 255
    frames[1, 1] = 255
    first = torso.layers[0]
    images = np.stack([np.ones((36, 36, 2)), np.broadcast_to([0.0, 1.0], (36, 36, 2))]).astype(np.float32)
    features = jnp.asarray(images)
    for layer in torso.layers:
        features = jax.nn.relu(layer(features))
    np.testing.assert_allclose(torso(jnp.asarray(frames)), features.reshape(2, -1), rtol=1e-5, atol=1e-6)
    assert first.linear.weight.shape == (32, 8 * 8 * 2)
    assert num_features(torso, spec) == features[0].size


def test_observations_are_brought_to_one_by_their_bounds():
    torso = make_torso("mlp", VECTOR, jax.random.key(0))
    observations = jnp.array([[-1, 0, 10], [1, 4, 30], [0, 1, 25]], jnp.float32)
    np.testing.assert_allclose(torso(observations), [[-1, -1, -1], [1, 1, 1], [0, -0.5, 0.5]], atol=1e-6)
    unbounded = make_torso("mlp", VECTOR._replace(observation_low=None, observation_high=None), jax.random.key(0))
    np.testing.assert_array_equal(unbounded(observations), observations)


def test_the_widths_of_the_dense_torso_are_honored():
    torso = make_torso("mlp", VECTOR, jax.random.key(0), (7, 5))
    assert num_features(torso, VECTOR) == 5
    assert count_parameters(torso) == 4 * 7 + 8 * 5
    assert np.asarray(torso(jnp.full((50, 3), 3, jnp.float32))).min() >= 0


@pytest.mark.parametrize("widths", [(0,), (8, 0, 8), (-1,)])
def test_a_layer_without_units_is_refused(widths):
    with pytest.raises(ValueError, match="its widths must be at least 1"):
        Dense(4, widths, False, jax.random.key(0))
