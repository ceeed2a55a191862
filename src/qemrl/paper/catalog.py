"""Every item that can be reproduced, in the order of the paper. What an item needs is imported when it runs."""

from collections.abc import Callable
from importlib import import_module

import matplotlib as mpl

from qemrl.paper.claims import Item, Result, Scale, Tick
from qemrl.plotting.style import STYLE


def _load(module: str) -> Callable[[Scale, int, Tick], Result]:
    """The function `run` of a module, imported when it is called, with figures in the style of all."""

    def run(scale: Scale, seed: int, tick: Tick) -> Result:
        with mpl.rc_context(STYLE):
            return import_module(f"qemrl.paper.items.{module}").run(scale, seed, tick)

    return run


ITEMS: tuple[Item, ...] = (
    Item("error-decay", "Figure 1", "E1, E2 and E3 of equation (1) over training", _load("error_decay")),
    Item("toy-uniform", "Figure 2(a)", "the quantiles at x0: are they biased?", _load("toy_uniform")),
    Item("toy-exponential", "Figure 2(b, c)", "how often the wrong action wins", _load("toy_exponential")),
    Item("chain", "Figure 3", "errors of learned quantiles, level by level", _load("chain")),
    Item("frozen-lake", "Section 5.1", "QDRL and QEMRL against the exact truth", _load("frozen_lake")),
    Item("exploration", "Section 5.3", "bonuses where chance fails: DLTV, QEM, counts", _load("exploration")),
    Item("representations", "Section 1", "other representations: what is said of them", _load("representations")),
    Item("return-variance", "Section 5.3", "QEM's variance, DLTV's and the plain one", _load("return_variance")),
    Item("model-selection", "Appendix C", "R² of expansions, and the collinear Model 4", _load("model_selection")),
    Item("table-4", "Table 4", "the paper's condition f, and what it misses", _load("table_4")),
    Item("v-tuning", "Appendix E.2", "which v in the tails is best, and does it matter?", _load("v_tuning")),
    Item("v-study", "Section 6", "which estimator and which V to choose", _load("v_study")),
    Item("variance-ratio", "ours", "Var(mean)/Var(QEM), independent errors", _load("variance_ratio")),
    Item("correlated-noise", "ours", "Var(mean)/Var(QEM), the errors of learning", _load("correlated_noise")),
    Item("iqn-variance", "ours", "the error that random levels cause", _load("iqn_variance")),
)

BY_NAME: dict[str, Item] = {item.name: item for item in ITEMS}
