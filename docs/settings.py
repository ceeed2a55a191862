"""Writes the table of settings on each preset's page: what each setting is, by environment family, and where from.

`python docs/settings.py` writes the tables into docs/presets. A source states values; a setting has the first source
that states the value it has. Whoever changes a preset therefore has to say where the new value comes from.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qemrl.agents.names import ACTOR_CRITICS, MUJOCO_TASKS, SUMMARIES, VALUE_AGENTS, EnvFamily
from qemrl.agents.presets import PRESETS
from qemrl.config.describe import list_settings

PAGES = Path(__file__).parent / "presets"
BEGIN, END = "<!-- settings: written by docs/settings.py -->", "<!-- end of settings -->"

DISCRETE, CONTINUOUS = tuple(VALUE_AGENTS), tuple(ACTOR_CRITICS)
LIKE_DQN = ("dqn", "bootstrapped-dqn")
LIKE_C51 = ("c51", "hl-gauss")
IMPLICIT = ("iqn", "iqem-dqn", "m-iqn", "fqf-uniform")
LIKE_IQN = (*IMPLICIT, "fqf", "ndqfn")
LIKE_QR_DQN = tuple(name for name in DISCRETE if name not in (*LIKE_DQN, *LIKE_C51, *LIKE_IQN))
"""Whose settings presets share; all of them are in one of the four."""

BOOTSTRAPPED = ("bootstrapped-dqn", "bootstrapped-qr-dqn")
DSAC = tuple(name for name in ACTOR_CRITICS if "dsac" in name)
QEM_PAPER = ("qr-dqn", "qem-dqn", "iqn", "iqem-dqn", "qr-dqn-dltv", "qem-dqn-dltv", "qem-dqn-var")
QEM_PAPER_CRITICS = tuple(name for name in CONTINUOUS if name != "dsac-fqf")
"""Presets that are in the paper or, as plain critics are, get their settings from its tables."""

COLUMNS: dict[str, tuple[tuple[str, tuple[EnvFamily, ...]], ...]] = {
    "discrete": (("Atari", ("atari",)), ("MinAtar", ("minatar",)), ("classic", ("classic",))),
    "continuous": (("MuJoCo", MUJOCO_TASKS), ("classic", ("classic",))),
}
"""The columns of a table, and the families that share one."""


class Source(NamedTuple):
    """Where values come from."""

    name: str
    families: tuple[EnvFamily, ...]
    presets: tuple[str, ...]
    values: str
    """`setting value` on each line, both as the command line has them; several values are separated by `or`."""

    def states(self, preset: str, family: EnvFamily, setting: str, value: str) -> bool:
        """Whether this is a source of that value."""
        if preset not in self.presets or family not in self.families:
            return False
        lines = dict(line.strip().split(" ", 1) for line in self.values.strip().splitlines())
        return value in lines.get(setting, "").split(" or ")


ALL: tuple[EnvFamily, ...] = ("atari", "minatar", "classic", *MUJOCO_TASKS)
ALGORITHM = """
    representation scalar or categorical or quantiles or implicit-quantiles or proposed-fractions or non-crossing or \
non-decreasing or spline or expectiles or particles or gaussian-histogram or bootstrapped
    representation.num_heads 1
    representation.loss_function quantile-huber
    representation.learning_levels uniform or midpoints
    representation.acting_levels uniform or midpoints
    representation.share_levels false
    representation.fraction_loss wasserstein
    representation.entropy 0.0
    representation.imputation true or false
    representation.prior_scale 0.0
    estimator mean or qem or qem-atari or qem-mujoco
    estimator.order 4
    estimator.basis hermite
    estimator.variance constant or tail
    estimator.variance.value 1.0
    averaging online
    double false
    munchausen true or false
    network.dueling false
    network.noisy false
    replay.prioritized false
    optimizer.schedule constant
    optimizer.warmup_steps 0
    policy tanh-gaussian
    temperature.target_entropy none
"""
OURS = "ours"

SOURCES: tuple[Source, ...] = (
    Source(
        "QEM paper, table 2",
        ("atari",),
        QEM_PAPER,
        """
        optimizer.learning_rate 5e-05
        discount 0.99
        batch_size 32
        representation.num_quantiles 200
        representation.num_acting_levels 32
        estimator.variance tail
        estimator.variance.value 1.5
        estimator.variance.tail 0.1
        exploration.bonus.estimator.variance.value 1.5
        exploration.bonus.estimator.variance.tail 0.1
        """,
    ),
    Source(
        "QEM paper, table 3",
        MUJOCO_TASKS,
        QEM_PAPER_CRITICS,
        """
        optimizer.learning_rate 0.0003
        discount 0.99
        polyak 0.005
        batch_size 256
        learning_starts 10000
        temperature fixed
        temperature.value 0.2 or 0.05
        """,
    ),
    Source(
        "QEM paper, table 3",
        MUJOCO_TASKS,
        tuple(name for name in DSAC if name in QEM_PAPER_CRITICS),
        """
        representation.num_quantiles 32
        representation.num_levels 32
        representation.num_target_levels 32
        representation.num_acting_levels 32
        representation.num_cosines 64
        estimator.variance tail
        estimator.variance.value 1.2
        estimator.variance.tail 0.1
        """,
    ),
    Source(
        "DLTV paper",
        ALL,
        ("qr-dqn-dltv", "qem-dqn-dltv", "qem-dqn-var"),
        """
        exploration dltv
        exploration.schedule sqrt-log
        exploration.schedule.scale 50.0
        exploration.schedule.until_steps none
        exploration.count_from start
        exploration.bonus.released false
        """,
    ),
    Source(
        "QEM paper, section 5.3",
        ALL,
        ("qem-dqn-var",),
        """
        exploration qem-std-bonus
        exploration.bonus.estimator.order 4
        exploration.bonus.estimator.basis hermite
        """,
    ),
    Source(
        "Munchausen RL paper",
        ALL,
        ("m-iqn",),
        """
        munchausen_weight 0.9
        munchausen_temperature 0.03
        munchausen_floor -1.0
        """,
    ),
    Source("FQF paper", ("atari",), ("fqf",), "optimizer.learning_rate 5e-05\noptimizer.epsilon 0.0003125"),
    Source(
        "FQF paper",
        ALL,
        ("fqf", "fqf-uniform"),
        """
        representation.num_fractions 32
        representation.num_levels 32
        representation.num_target_levels 32
        representation.num_acting_levels 32
        representation.num_cosines 64
        representation.kappa 1.0
        representation.fraction_widths empty
        representation.fraction_rate 2.5e-09
        representation.weigh_targets false
        """,
    ),
    Source("NC-QR-DQN paper", ("atari",), ("nc-qr-dqn",), "representation.num_quantiles 200"),
    Source("NDQFN paper", ALL, ("ndqfn",), "representation.increment relu"),
    Source("ER-DQN paper", ALL, ("er-dqn", "er-dqn-naive"), "representation.num_expectiles 11"),
    Source("MMD-DQN paper", ALL, ("mmd-dqn",), "representation.bandwidths 1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 10.0"),
    Source(
        "MMD-DQN paper",
        ("atari",),
        ("mmd-dqn",),
        """
        representation.num_particles 200
        optimizer.learning_rate 5e-05
        optimizer.epsilon 0.0003125
        target_every 10000
        learning_starts 50000
        exploration.over_steps 1000000
        """,
    ),
    Source("CR-DQN paper", ALL, ("cr-dqn",), "representation.loss_function cramer\nrepresentation.kappa 0.0"),
    Source("HL-Gauss paper", ALL, ("hl-gauss",), "representation.width 0.75"),
    Source(
        "Bootstrapped DQN paper",
        ALL,
        BOOTSTRAPPED,
        """
        double true
        representation.num_heads 10
        representation.mask_probability 1.0
        exploration head-sampling
        exploration.evaluate_by vote
        exploration.epsilon 0.0
        """,
    ),
    Source("QR-DQN paper", ("atari",), LIKE_QR_DQN, "representation.num_quantiles 200"),
    Source(
        "IQN paper",
        ALL,
        LIKE_IQN,
        """
        representation.num_cosines 64
        representation.gate relu
        representation.layer_norm false
        representation.kappa 1.0
        """,
    ),
    Source(
        "IQN paper",
        ALL,
        IMPLICIT,
        """
        representation.num_levels 64
        representation.num_target_levels 64
        representation.num_acting_levels 32
        """,
    ),
    Source(
        "C51 paper",
        ("atari",),
        LIKE_C51,
        """
        representation.num_atoms 51
        representation.low -10.0
        representation.high 10.0
        """,
    ),
    Source(
        "Dopamine (JAX)",
        ("atari",),
        LIKE_DQN,
        """
        optimizer.learning_rate 6.25e-05
        optimizer.epsilon 0.00015
        """,
    ),
    Source("DQN Zoo", ("atari",), LIKE_C51, "optimizer.learning_rate 0.00025"),
    Source("DQN Zoo", ("atari",), (*LIKE_QR_DQN, *LIKE_IQN), "optimizer.learning_rate 5e-05"),
    Source("DQN Zoo", ("atari",), (*LIKE_C51, *LIKE_QR_DQN), "optimizer.max_gradient_norm 10.0"),
    Source(
        "DQN Zoo",
        ("atari",),
        LIKE_IQN,
        """
        optimizer.max_gradient_norm none
        learning_starts 20000
        exploration.begin_steps 20000
        """,
    ),
    Source(
        "DQN Zoo",
        ("atari",),
        tuple(name for name in DISCRETE if name not in LIKE_IQN),
        """
        learning_starts 50000
        exploration.begin_steps 50000
        exploration.random_steps none
        """,
    ),
    Source(
        "DQN Zoo",
        ("atari",),
        DISCRETE,
        """
        discount 0.99
        batch_size 32
        update_every 4
        target_every 10000
        clip_rewards true
        representation.kappa 1.0
        exploration epsilon-greedy
        exploration.initial 1.0
        exploration.final 0.01
        exploration.over_steps 1000000
        exploration.evaluation 0.001
        network.torso auto
        network.widths empty
        network.hidden 512
        network.layer_norm false
        network.initializer fan-in
        optimizer.epsilon 0.0003125
        replay.capacity 1000000
        replay.n_step 1
        """,
    ),
    Source(
        "[study](../../results/studies/iqn-settings)",
        ("minatar",),
        LIKE_IQN,
        """
        optimizer.learning_rate 0.0006
        network.initializer fan-in
        """,
    ),
    Source(
        "[study](../../results/studies/minatar-settings)",
        ("minatar",),
        DISCRETE,
        """
        network.widths 128
        network.layer_norm false
        optimizer.learning_rate 0.0003
        replay.n_step 3
        update_every 4
        """,
    ),
    Source("Revisiting Rainbow", ("minatar",), (*LIKE_QR_DQN, *LIKE_IQN), "representation.kappa 1.0"),
    Source("Revisiting Rainbow", ("minatar",), LIKE_DQN, "representation.kappa none"),
    Source(
        "Revisiting Rainbow",
        ("minatar",),
        IMPLICIT,
        """
        representation.num_levels 32
        representation.num_target_levels 32
        representation.num_acting_levels 32
        """,
    ),
    Source(
        "Revisiting Rainbow",
        ("minatar",),
        DISCRETE,
        """
        discount 0.99
        batch_size 32
        target_every 1000
        learning_starts 1000
        clip_rewards false
        representation.num_atoms 51
        representation.low -100.0
        representation.high 100.0
        representation.num_quantiles 51
        exploration epsilon-greedy
        exploration.initial 1.0
        exploration.final 0.01
        exploration.begin_steps 1000
        exploration.over_steps 250000
        exploration.random_steps none
        exploration.evaluation 0.001
        network.torso auto
        network.hidden empty
        optimizer.epsilon 0.0003125
        optimizer.max_gradient_norm none
        replay.capacity 100000
        """,
    ),
    Source("DQN Zoo", ("minatar", "classic"), DISCRETE, "network.initializer fan-in"),
    Source(
        "[study](../../results/studies/classic-settings)",
        ("classic",),
        DISCRETE,
        """
        update_every 1
        target_every 500
        replay.n_step 3
        optimizer.learning_rate 0.001
        exploration.final 0.05
        exploration.over_steps 20000
        """,
    ),
    Source(
        "Dopamine's CartPole",
        ("classic",),
        DISCRETE,
        """
        discount 0.99
        learning_starts 500
        clip_rewards false
        replay.capacity 50000
        optimizer.epsilon 0.0003125
        optimizer.max_gradient_norm none
        exploration.random_steps none
        representation.kappa 1.0
        """,
    ),
    Source(
        "TD3 paper",
        ALL,
        ("td3",),
        """
        policy deterministic
        policy.noise 0.1
        policy.target_noise 0.2
        policy.target_clip 0.5
        policy_every 2
        target_policy true
        ensemble.policy first
        temperature.value 0.0
        temperature fixed
        """,
    ),
    Source(
        "TQC paper",
        ALL,
        ("tqc",),
        """
        ensemble pooled-truncation
        ensemble.size 5
        ensemble.drop 0 or 2 or 5
        representation.num_quantiles 25
        representation.kappa 1.0
        temperature automatic
        temperature.initial 1.0
        """,
    ),
    Source(
        "TQC paper",
        MUJOCO_TASKS,
        ("tqc",),
        """
        network.critic_widths 512
        network.critic_hidden 512 512
        network.layer_norm false
        """,
    ),
    Source(
        "DSAC's code",
        ALL,
        tuple(name for name in DSAC if "mlp" not in name),
        """
        representation.learning_levels midpoints or cumulative
        representation.acting_levels midpoints or cumulative
        representation.gate sigmoid
        representation.layer_norm true
        network.layer_norm true
        """,
    ),
    Source("DSAC's code", ALL, DSAC, "target_policy true\nrepresentation.kappa 1.0"),
    Source(
        "DSAC's code",
        ALL,
        ("dsac-fqf",),
        """
        representation.fraction_widths 128 128
        representation.fraction_rate 1e-05
        representation.weigh_targets true
        """,
    ),
    Source(
        "DSAC's code",
        MUJOCO_TASKS,
        ("dsac-fqf",),
        """
        representation.num_fractions 32
        representation.num_cosines 64
        optimizer.learning_rate 0.0003
        discount 0.99
        polyak 0.005
        batch_size 256
        learning_starts 10000
        temperature fixed
        temperature.value 0.2 or 0.05
        """,
    ),
    Source("SAC paper", ALL, ("sac", "td3", "tqc"), "target_policy false\nrepresentation.kappa none"),
    Source(
        "DSAC's code",
        MUJOCO_TASKS,
        CONTINUOUS,
        """
        network.torso auto
        network.policy_widths 256 256
        network.critic_widths 256
        network.critic_hidden 256
        optimizer.epsilon 1e-08
        optimizer.max_gradient_norm none
        replay.capacity 1000000
        replay.n_step 1
        update_every 1
        random_steps 10000
        clip_rewards false
        """,
    ),
    Source(
        "DSAC's code",
        ALL,
        CONTINUOUS,
        """
        ensemble elementwise-min
        ensemble.size 2
        ensemble.policy min
        policy_every 1
        policy.log_std_min -20.0
        policy.log_std_max 2.0
        """,
    ),
    Source("the algorithm", ALL, (*DISCRETE, *CONTINUOUS), ALGORITHM),
    Source(OURS, ("minatar", "classic"), QEM_PAPER, "estimator.variance.value 1.5\nestimator.variance.tail 0.1"),
    Source(
        OURS,
        ("minatar", "classic"),
        ("qem-dqn-var",),
        "exploration.bonus.estimator.variance.value 1.5\nexploration.bonus.estimator.variance.tail 0.1",
    ),
    Source(OURS, ALL, ("qem-dqn-var",), "exploration.bonus.coefficient false"),
    Source(OURS, ("atari",), LIKE_DQN, "optimizer.max_gradient_norm none"),
    Source(OURS, ("classic",), LIKE_DQN, "optimizer.epsilon 0.00015"),
    Source(OURS, ALL, ("nc-qr-dqn",), "representation.scale softplus"),
    Source(OURS, ALL, ("spl-dqn",), "representation.num_bins 16\nrepresentation.mean grid"),
    Source(OURS, ("minatar", "classic"), ("mmd-dqn",), "representation.num_particles 51"),
    Source(
        OURS,
        ALL,
        ("ndqfn",),
        """
        representation.num_levels 32
        representation.num_loss_levels 64 or 32
        representation.num_target_levels 64 or 32
        """,
    ),
    Source(
        OURS,
        ("classic",),
        DISCRETE,
        """
        batch_size 64
        representation.num_atoms 51
        representation.low -100.0
        representation.high 100.0
        representation.num_quantiles 51
        representation.num_levels 32
        representation.num_target_levels 32
        exploration epsilon-greedy
        exploration.initial 1.0
        exploration.begin_steps 500
        exploration.evaluation 0.001
        network.torso auto
        network.widths 256 256
        network.hidden empty
        network.layer_norm false
        """,
    ),
    Source(OURS, MUJOCO_TASKS, ("dsac-mlp", "qem-dsac-mlp", "sac", "td3"), "network.layer_norm false"),
    Source(OURS, MUJOCO_TASKS, ("tqc",), "random_steps 10000"),
    Source(
        OURS,
        ("classic",),
        CONTINUOUS,
        """
        polyak 0.005
        discount 0.99
        batch_size 64
        update_every 1
        learning_starts 1000
        random_steps 1000
        clip_rewards false
        temperature fixed
        temperature.value 0.2
        estimator.variance.value 1.2
        estimator.variance.tail 0.1
        representation.num_quantiles 32
        representation.num_levels 32
        representation.num_target_levels 32
        representation.num_acting_levels 32
        representation.num_fractions 32
        representation.num_cosines 64
        network.torso auto
        network.policy_widths 64 64
        network.critic_widths 64
        network.critic_hidden 64
        network.layer_norm false
        optimizer.learning_rate 0.001
        optimizer.epsilon 1e-08
        optimizer.max_gradient_norm none
        replay.capacity 100000
        replay.n_step 1
        """,
    ),
)
"""All sources; the first that states a value counts."""

UNUSED = (
    *("replay.priority_exponent", "replay.importance_exponent"),
    *("optimizer.decay_steps", "optimizer.final_rate"),
)
"""Settings of a prioritized replay and of a learning rate that falls, which no preset has."""

MUNCHAUSEN = ("munchausen_weight", "munchausen_temperature", "munchausen_floor")
"""Settings that mean something where `munchausen` is true."""


def find_source(preset: str, family: EnvFamily, setting: str, value: str) -> str:
    """Where the value of a setting comes from.

    Raises:
        ValueError: No source states it.
    """
    own = setting.replace("representation.head.", "representation.")  # heads have the settings of a preset
    for source in SOURCES:
        if source.states(preset, family, own, value):
            return source.name
    raise ValueError(f"no source in docs/settings.py states {setting} = {value} for {preset} on {family}")


def values_by_family(preset: str) -> dict[EnvFamily, dict[str, str]]:
    """The settings of a preset in each of its families."""
    kind = "discrete" if preset in VALUE_AGENTS else "continuous"
    return {family: _used_values(preset, family) for _, families in COLUMNS[kind] for family in families}


def _used_values(preset: str, family: EnvFamily) -> dict[str, str]:
    groups = list_settings(PRESETS[preset].configure(family))
    values = {setting.name: setting.default for group in groups for setting in group.settings}
    unused = UNUSED if values.get("munchausen") == "true" else (*UNUSED, *MUNCHAUSEN)
    return {name: value for name, value in values.items() if name not in unused}


def write_table(preset: str) -> Iterator[str]:
    """The lines of the table."""
    columns = COLUMNS["discrete" if preset in VALUE_AGENTS else "continuous"]
    values = values_by_family(preset)
    yield "| setting | " + " | ".join(f"{title} | source" for title, _ in columns) + " |"
    yield "|---|" + "---|---|" * len(columns)
    for setting in dict.fromkeys(name for settings in values.values() for name in settings):
        cells = []
        for _, families in columns:
            cell, source = _write_cell(preset, families, setting, values)
            cells += [cell, source]
        yield f"| `{setting}` | " + " | ".join(cells) + " |"


def _write_cell(
    preset: str, families: tuple[EnvFamily, ...], setting: str, values: dict[EnvFamily, dict[str, str]]
) -> tuple[str, str]:
    by_value: dict[str, list[EnvFamily]] = {}
    for family in families:
        if setting in values[family]:
            by_value.setdefault(values[family][setting], []).append(family)
    if not by_value:
        return "–", "–"
    usual = max(by_value, key=lambda value: len(by_value[value]))
    others = [f"{', '.join(by_value[value])}: {value}" for value in by_value if value != usual]
    sources = {find_source(preset, family, setting, value) for value, each in by_value.items() for family in each}
    return "; ".join([usual, *others]), ", ".join(sorted(sources))


def write_page(preset: str, text: str) -> str:
    """The text of a preset's page with its table, which stands before the section on metrics."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    if not rest:
        head, _, tail = text.partition("## Metrics")
        tail = f"\n\n## Metrics{tail}"
        explanation = "Chosen by the environment's family; every one can be [changed](../agents.md#settings)."
        head = f"{head}## Settings\n\n{explanation}\n\n"
    return head + "\n".join([BEGIN, "", *write_table(preset), "", END]) + tail


if __name__ == "__main__":
    for name in SUMMARIES:
        page = PAGES / f"{name}.md"
        page.write_text(write_page(name, page.read_text(encoding="utf-8")), encoding="utf-8")
