"""The bench of representations: what is compared, how memory is counted, and what is shown."""

import json
from dataclasses import replace

from benchmarks import command
from benchmarks.iterations import SPECS, Overhead
from benchmarks.performance import SECTIONS
from benchmarks.representations import LIMITS, MEGABYTES, Memory, RepresentationReport, temporary_megabytes
from qemrl.agents.presets import PRESETS
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.quantiles import FixedQuantiles


def test_a_representation_is_compared_with_the_preset_whose_other_settings_it_has():
    for family in ("atari", "minatar"):
        for peer, limits in LIMITS.items():
            for name in limits:
                config, other = (PRESETS[each].configure(family) for each in (name, peer))
                assert replace(config, representation=other.representation) == other


def test_memory_grows_with_what_an_update_makes():
    config = PRESETS["qr-dqn"].configure("classic")
    assert isinstance(config, ValueConfig)
    small = replace(config, network=NetworkConfig(widths=(8,)), representation=FixedQuantiles(8))
    few, many = (temporary_megabytes(replace(small, batch_size=size), SPECS["cartpole"]) for size in (64, 4096))
    assert 0 < few < many < 100


def test_a_report_is_shown_and_is_plain_data(capsys):
    overheads = [Overhead("atari", "mmd-dqn", 30.0, "qr-dqn", 20.0, 1.5, 2.5)]
    memories = [Memory("atari", "mmd-dqn", 150.0, "qr-dqn", 49.0), Memory("atari", "er-dqn", 149.0, "qr-dqn", 49.0)]
    assert [line.holds for line in memories] == [False, True]
    assert memories[0].megabytes - memories[0].peer_megabytes > MEGABYTES
    report = RepresentationReport(overheads, memories, {})
    command.show_representations(report)
    shown = capsys.readouterr().out
    for text in ("mmd-dqn", "1.500", "2.5 ✓", "150.0 ✗", "149.0 ✓"):
        assert text in shown
    sheets = SECTIONS["representations"].sheets(json.loads(json.dumps(report.as_json())))
    assert [sheet.holds for sheet in sheets] == [[True], [False, True]]
