"""The names of the presets and what they are, which can be listed without importing JAX."""

SUMMARIES: dict[str, str] = {
    "dqn": "expected return only",
    "c51": "probabilities of 51 fixed atoms",
    "qr-dqn": "fixed quantiles, their mean is Q",
    "qem-dqn": "fixed quantiles, Q by QEM with the paper's V on Atari",
    "iqn": "quantiles at random levels, their mean is Q",
    "iqem-dqn": "quantiles at random levels, Q by QEM",
}
