"""What every preset must do: a list of defects that were found in other implementations."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_loops import LEARNERS

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.agent import NEVER, AgentState
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.policies import AutomaticTemperature, FixedTemperature
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.agents.value import ValueConfig
from qemrl.distributional.atoms import Scalar
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.distributional.particles import Particles
from qemrl.estimators import QEM, CVaR
from qemrl.replay import HostReplay, ReplayConfig
from qemrl.types import Step

GOLDEN = Path(__file__).parent / "golden.json"
"""Losses of each preset. To write them anew after a change that is meant to change them: delete the file, run
`pytest tests/contract/test_presets.py -n0 -k golden`, which fails once and writes it, and look at the difference."""


def stream(spec, count: int, num_envs: int = 2):
    """Steps whose episodes end by chance, some of them by truncation."""
    generator = np.random.default_rng(5)
    now = generator.uniform(-1, 1, (num_envs, *spec.observation_shape)).astype(np.float32)
    for _ in range(count):
        then = generator.uniform(-1, 1, now.shape).astype(np.float32)
        ends, truncates = generator.random((2, num_envs)) < [[0.3], [0.4]]
        mask, action = some_actions(spec, num_envs, generator)
        yield Step(
            now,
            action,
            generator.normal(1, 1, num_envs).astype(np.float32),
            ends & ~truncates,
            ends & truncates,
            then,
            mask,
        )
        now = np.where(ends[:, None], generator.uniform(-1, 1, now.shape).astype(np.float32), then)


def some_actions(spec, num_envs: int, generator: np.random.Generator):
    """A mask, where actions are discrete, and actions."""
    if spec.box is not None:
        return None, generator.uniform(spec.box.low, spec.box.high, (num_envs, *spec.box.shape)).astype(np.float32)
    mask = np.ones((num_envs, spec.num_actions), bool)
    mask[:, 1] = generator.random(num_envs) < 0.7
    return mask, generator.integers(0, spec.num_actions, num_envs).astype(np.int32)


def filled(system, config: ReplayConfig, count: int = 40) -> HostReplay:
    replay = HostReplay(system.spec, 2, config, 0.8)
    for step in stream(system.spec, count):
        replay.add(step)
    return replay


def bits(system, number: int) -> np.ndarray:
    return np.asarray(system.keys.bits(jnp.int32(number), 32))


def mid_state(system) -> AgentState:
    """The host loop's agent after some learning."""
    states = system.host_run.states
    system.host.restore(states[600])
    return system.host.agent_state


def same(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def copied(state: AgentState) -> AgentState:
    """The state in memory that no loop reuses."""
    return jax.tree.map(np.array, state)


def test_every_target_network_is_read_where_a_transition_goes_on(system):
    state = mid_state(system)
    batch, _ = filled(system, ReplayConfig(100)).sample(bits(system, 0))
    *_, loss, surprises = system.learn(state, batch)
    goes_on = batch.discount > 0
    assert 0 < goes_on.sum() < 32
    for name, network in system.targets(state).items():
        # Not the same for all outputs of a layer, which probabilities would not notice.
        other = jax.tree.map(
            lambda leaf: leaf + np.sin(np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape), network
        )
        *_, other_loss, other_surprises = system.learn(system.with_targets(state, {name: other}), batch)
        assert loss != other_loss
        unchanged = np.isclose(surprises[goes_on], other_surprises[goes_on], rtol=1e-5)
        # Both policies may go to the end of the box, and so to the same action.
        assert unchanged.mean() < 0.2 if name == "target_policy" else not unchanged.any(), name
        # C51's target there is one atom, but its mass is a sum of probabilities, which is one up to rounding only.
        np.testing.assert_allclose(surprises[~goes_on], other_surprises[~goes_on], rtol=1e-6, err_msg=name)


def test_a_refresh_gives_the_parameters_to_agents_that_wait_for_one(system):
    state, agent = mid_state(system), system.host.agent
    if isinstance(system.config, ActorCriticConfig):
        assert (agent.target_update_every, agent.refresh_target(state)) == (NEVER, ())
    else:
        assert not same(state.params, state.target)
        assert same(agent.refresh_target(state), state.params)


def require_due_moves(system, before: AgentState, after: AgentState, number: int):
    """Target networks have moved as they should with this update, or have not where they should not."""
    old, new = system.targets(before), system.targets(after)
    if not system.due(number):
        assert same(old, new)
        return
    assert not same(old, new)
    for one, other in zip(jax.tree.leaves(system.where_targets_go(before, after)), jax.tree.leaves(new), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_target_networks_move_when_it_is_due_and_only_then_in_the_host_loop(system):
    """At step 600 there were 125 updates. A refresh, every ten of them, comes with step 620: the iteration from there.

    Actor-critics move theirs with every update, TD3 with every second.
    """
    host, states = system.host, system.host_run.states
    host.restore(states[600])
    for number in range(125, 141):
        before = copied(host.agent_state)
        host._iterate()
        require_due_moves(system, before, copied(host.agent_state), number)


def test_target_networks_move_when_it_is_due_and_only_then_in_the_compiled_loop(system):
    """At step 400 there were 75 updates."""
    loop = system.compiled.loop
    loop.restore(400, system.compiled.states[400])
    for number in range(75, 92):
        before = copied(loop.state.agent)
        loop.advance(loop.step + 4, False)
        require_due_moves(system, before, copied(loop.state.agent), number)


def test_importance_weights_reach_the_gradient(system):
    """A transition of weight zero teaches nothing, whatever its reward; with weight one it does."""
    state = mid_state(system)
    batch, _ = filled(system, ReplayConfig(100)).sample(bits(system, 1))
    batch = batch._replace(observation=batch.observation + np.arange(32, dtype=np.float32)[:, None] / 100)
    low, high = batch.reward.copy(), batch.reward.copy()
    # On both sides of any target, since losses may be linear far from it; not where kernels see nothing any more.
    low[3], high[3] = (-4, 4) if isinstance(system.config.representation, Particles) else (-30, 30)
    weight = batch.weight.copy()
    weight[3] = 0
    without = system.learn(state, batch._replace(weight=weight, reward=low))
    without_again = system.learn(state, batch._replace(weight=weight, reward=high))
    assert same(without[0], without_again[0])
    assert without[2] == without_again[2]
    assert not same(
        system.learn(state, batch._replace(reward=low))[0], system.learn(state, batch._replace(reward=high))[0]
    )
    whole, halved = (
        system.learn(state, batch._replace(weight=share * batch.weight)) for share in (np.float32(1), np.float32(0.5))
    )
    assert halved[2] == pytest.approx(0.5 * whole[2], rel=1e-5)
    assert not same(halved[0], whole[0])


def test_one_seed_repeats_bit_for_bit_and_two_differ(system):
    """The compiled loop ran the seeds 3, 4 and 3 side by side."""
    for step, state in system.compiled.states.items():
        for name, array in state.items():
            np.testing.assert_array_equal(array[0], array[2], err_msg=f"{name} at {step}")
    params = jax.tree.leaves(system.compiled.loop.state.agent.params)
    assert all(not np.array_equal(leaf[0], leaf[1]) for leaf in params)


def test_nothing_is_compiled_again_after_the_first_update(system):
    """Chunks of three lengths, with and without evaluation, are one program; so are all updates of the host loop."""
    assert system.compiled.programs == 1
    assert system.host_run.programs == (1, 1)


def test_the_compiled_loop_goes_on_from_a_checkpoint_bit_for_bit(system):
    loop = system.compiled.loop
    loop.restore(400, system.compiled.states[400])
    loop.advance(800, False)
    require_same_arrays(loop.arrays(), system.compiled.states[800])


def test_the_length_of_chunks_does_not_matter(system):
    loop = system.compiled.loop
    loop.restore(0, system.compiled.states[0])
    loop.advance(800, False)
    require_same_arrays(loop.arrays(), system.compiled.states[800])


def test_the_host_loop_goes_on_from_a_checkpoint_bit_for_bit(system):
    host, states = system.host, system.host_run.states
    assert host.restore(states[400]) == []
    host.advance(600, False, lambda: False)
    require_same_arrays(host.arrays(), system.host_run.states[600])


def require_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def few_updates(system, config: ReplayConfig):
    """Parameters and losses after five updates from a replay of these settings, and all weights."""
    state, replay = mid_state(system), filled(system, config)
    losses, weights = [], []
    for number in range(5):
        batch, indices = replay.sample(bits(system, number))
        params, learning, loss, surprises = system.learn(state, batch, number)
        state = AgentState(params, learning, state.target)
        if config.prioritized:
            replay.update_priorities(indices, surprises)
        losses.append(loss)
        weights.append(batch.weight)
    assert np.isfinite(losses).all()
    return state.params, np.array(weights)


def test_n_steps_and_priorities_change_what_is_learned(system):
    plain, weights = few_updates(system, ReplayConfig(100))
    assert (weights == 1).all()
    assert not same(plain, few_updates(system, ReplayConfig(100, n_step=3))[0])
    prioritized, weights = few_updates(system, ReplayConfig(100, prioritized=True))
    assert weights.min() < 0.9
    assert weights.max() == 1
    assert not same(plain, prioritized)


def switches(config: AgentConfig) -> dict[str, AgentConfig]:
    """The configuration with one thing changed, by what it is."""
    optimizer = replace(config.optimizer, max_gradient_norm=1e-3)
    match config:
        case ValueConfig():
            return {
                "plain": config,
                "double": replace(config, double=True),
                "dueling": replace(config, network=replace(config.network, dueling=True)),
                "noisy": replace(config, network=replace(config.network, noisy=True)),
                "clip": replace(config, optimizer=optimizer),
            }
        case ActorCriticConfig():
            return {"plain": config, "clip": replace(config, optimizer=optimizer), **actor_critic_switches(config)}


def actor_critic_switches(config: ActorCriticConfig) -> dict[str, AgentConfig]:
    """What goes with the representation; the least of two numbers is the same for all ensembles that take it."""
    one_number = isinstance(config.representation, Scalar)
    ensembles = [ElementwiseMin(policy="min" if one_number else "first"), Averaged(2)]
    ensembles += [] if one_number else [SmallestCritic(), PooledTruncation(2, 1)]
    estimators = [] if one_number else [QEM(4), CVaR(0.25)]
    temperatures = (
        [] if config.temperature == FixedTemperature(0.0) else [FixedTemperature(1.0), AutomaticTemperature()]
    )
    return {
        **{str(each): replace(config, ensemble=each) for each in ensembles},
        **{str(each): replace(config, estimator=each) for each in estimators},
        **{str(each): replace(config, temperature=each) for each in temperatures},
        "target policy": replace(config, target_policy=not config.target_policy),
        "layer norm": replace(config, network=replace(config.network, layer_norm=not config.network.layer_norm)),
    }


def test_every_switch_of_the_agent_changes_what_is_learned_and_keeps_it_finite(switched):
    """A few updates each, in one program: enough for a change of the policy to be seen in the loss of the critics."""
    configs = switches(switched.config)
    agents = {name: make_agent(each, switched.spec) for name, each in configs.items()}
    batch, _ = filled(switched, ReplayConfig(100)).sample(bits(switched, 0))
    batch = jax.tree.map(jnp.asarray, batch)
    numbers = jnp.arange(4 if isinstance(switched.config, ActorCriticConfig) else 3)

    def losses(agent, both):
        first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], both) for i in (0, 1))

        def update(state, number_and_key):
            number, key = number_and_key
            params, learning, update = agent.update(state, batch, key, number)
            return AgentState(params, learning, state.target), update.loss

        state = switched.with_targets(first, switched.targets(second))
        return jax.lax.scan(update, state, (numbers, jax.random.split(jax.random.key(2), len(numbers))))[1]

    keys, starts, found = jax.random.split(jax.random.key(0)), {}, {}
    for name, agent in agents.items():
        kind = str(jax.eval_shape(agent.init, keys[0]))  # by shape: to begin is much of a program
        if kind not in starts:
            starts[kind] = jax.jit(jax.vmap(agent.init))(keys)
        found[name] = jax.device_get(jax.jit(partial(losses, agent))(starts[kind]))
    for name, each in found.items():
        assert np.isfinite(each).all(), name
        # Also from one another: a temperature that is learned is not one that only begins elsewhere.
        apart = {other: abs(each[-1] - losses[-1]) for other, losses in found.items() if other != name}
        assert min(apart.values()) > 1e-6, (name, apart)
    assert found["clip"][0] == found["plain"][0]
    usual = PRESETS[switched.preset].configure("classic").optimizer
    assert switched.config.optimizer == AdamConfig(switched.config.optimizer.learning_rate, usual.epsilon)


def test_losses_of_a_fixed_stream_are_the_golden_ones(any_system):
    system = any_system
    state, replay, losses = system.host_start, HostReplay(system.spec, 2, ReplayConfig(64, n_step=2), 0.8), []
    for number, step in enumerate(stream(system.spec, 200)):
        replay.add(step)
        if number and number % 20 == 0:
            state = state._replace(target=system.host.agent.refresh_target(state))
        # Over 200 updates even the roundings of another generator of code would show.
        params, learning, loss, _ = system.learn(state, replay.sample(bits(system, number))[0], number, True)
        state = AgentState(params, learning, state.target)
        losses.append(loss)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if system.preset not in golden:
        golden[system.preset] = [float(f"{loss:.6g}") for loss in losses]
        lines = ",\n".join(f'"{name}": {json.dumps(values)}' for name, values in golden.items())
        GOLDEN.write_text(f"{{\n{lines}\n}}\n")
        pytest.fail(f"there were no golden losses of {system.preset}; they have been written to {GOLDEN}")
    np.testing.assert_allclose(losses, golden[system.preset], rtol=1e-3)


def test_no_two_presets_have_the_same_golden_losses():
    golden = json.loads(GOLDEN.read_text())
    assert list(golden) == LEARNERS
    assert len({tuple(losses) for losses in golden.values()}) == len(LEARNERS)
