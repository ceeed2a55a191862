"""Networks from Python in the place of a torso: what is made of them, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qemrl
from qemrl.networks import torsos
from qemrl.networks.torsos import OwnNetwork, make_torso, num_features
from qemrl.types import EnvSpec

SPEC = EnvSpec("own", (3, 2), "uint8", 4)
KEY = jax.random.key(0)


class Mixed(eqx.Module):
    """A module as Equinox users write them: with a function, a number and an array of NumPy among its leaves."""

    mlp: eqx.nn.MLP
    scale: np.ndarray
    power: float

    def __init__(self, spec: EnvSpec, key) -> None:
        self.mlp = eqx.nn.MLP(int(np.prod(spec.observation_shape)), 5, 7, 1, key=key)
        self.scale, self.power = np.full(6, 0.5, np.float32), 2.0

    def __call__(self, observation):
        flat = observation.reshape(observation.shape[0], -1).astype(jnp.float32)
        return jax.vmap(self.mlp)((flat * self.scale[None]) ** self.power)


def test_a_network_takes_the_place_of_what_reads_the_observation_and_dense_layers_follow():
    torso = jax.jit(lambda key: make_torso(Mixed, SPEC, key, (8,), layer_norm=True))(KEY)
    assert isinstance(torso.reader, OwnNetwork)
    assert num_features(torso, SPEC) == 8
    assert len(jax.tree.leaves(torso.reader)) == 5  # weights, biases and the scale; nothing else is learned
    observation = jnp.arange(12, dtype=jnp.uint8).reshape(2, 3, 2)
    features = Mixed(SPEC, KEY)(observation)
    np.testing.assert_allclose(torso.reader(observation), features, rtol=1e-5)
    np.testing.assert_allclose(torso(observation), torso.dense(features), rtol=1e-5)
    assert make_torso(Mixed, SPEC, KEY).dense.layers == ()


class Maps(eqx.Module):
    """A module around a function of batches."""

    function: object = eqx.field(static=True)

    def __call__(self, observation):
        return self.function(observation)  # type: ignore[operator]


class Counts(eqx.Module):
    """A module with whole numbers, which have no gradient."""

    order: jax.Array

    def __call__(self, observation):
        return observation[:, self.order, 0].astype(jnp.float32)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (jnp.sin, r"must be an Equinox module that can be called, got \w+"),
        (Maps(lambda x: jnp.float32(x[:, 0, 0])), r"map observations \[batch, 3, 2\] to features \[batch, n\]"),
        (Maps(lambda x: x[:, 0]), r"of floats; two observations gave .*\(2, 2\), dtype=uint8"),
        (Maps(lambda x: (jnp.float32(x[:, 0]),)), "two observations gave"),
        (Counts(jnp.arange(2)), r"holds an array of int32 in \.order, and only floats can be learned"),
    ],
)
def test_what_is_no_network_is_refused_with_what_was_expected(module, message):
    with pytest.raises(ValueError, match=message):
        make_torso(lambda *_: module, SPEC, KEY)


def test_an_error_inside_a_network_says_that_it_got_a_batch():
    with pytest.raises((TypeError, ValueError)) as caught:
        make_torso(lambda _, key: eqx.nn.Linear(6, 4, key=key), SPEC, KEY)
    assert any("gets a batch of observations (2, 3, 2) of uint8" in note for note in caught.value.__notes__)


def test_names_are_given_once(monkeypatch):
    monkeypatch.setattr(torsos, "_REGISTERED", {})
    qemrl.register_network("mixed", Mixed)
    qemrl.register_network("mixed", Mixed)
    assert isinstance(make_torso("mixed", SPEC, KEY).reader, OwnNetwork)
    other = lambda spec, key: Mixed(spec, key)  # noqa: E731
    for name in ("mixed", "auto", "nature", "mlp"):
        with pytest.raises(ValueError, match=f"there is a network {name!r} already"):
            qemrl.register_network(name, other)
    with pytest.raises(ValueError, match="a name has letters, digits"):
        qemrl.register_network("two words", other)
    with pytest.raises(ValueError, match="as a function that makes a module"):
        qemrl.register_network("made", Mixed(SPEC, KEY))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no network 'mixd' in this program, which knows .*mixed; register it first"):
        make_torso("mixd", SPEC, KEY)


def test_settings_know_registered_names_and_the_nearest_one(monkeypatch):
    monkeypatch.setattr(torsos, "_REGISTERED", {})
    qemrl.register_network("mixed", Mixed)
    for preset, env in (("dqn", "jax/catch"), ("sac", "jax/pendulum")):
        assert qemrl.make(preset, env, overrides={"network.torso": "mixed"}).config.agent.network.torso == "mixed"
        for torso, message in (
            ("mixd", "network.torso: 'mixd' is none of the choices; did you mean 'mixed'?"),
            (3, "network.torso: expects str, got 3"),
            (Mixed(SPEC, KEY), "network.torso: give a function that makes the module from spec and key; got a Mixed"),
        ):
            with pytest.raises(ValueError, match=message):
                qemrl.make(preset, env, overrides={"network.torso": torso})
