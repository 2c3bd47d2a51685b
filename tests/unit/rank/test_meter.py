"""Lines about long work."""

from __future__ import annotations

from typing import Any

from ansible_collections.tandem.serving.plugins.plugin_utils._meter import Meter

STATE: dict[str, Any] = {
    "phase": "download",
    "unit": "bytes",
    "done": 0,
    "total": 4 << 30,
    "item": 1,
    "items": 3,
    "current": "model-00001.safetensors",
}


def test_a_line_says_how_much_how_fast_how_long_and_which_file() -> None:
    meter = Meter(0.0)
    assert meter.look(STATE, 0.0) == "download | 0 B of 4.0 GiB (0 %) | 1 of 3 model-00001.safetensors"
    line = meter.look({**STATE, "done": 1 << 30, "item": 2, "current": "b"}, 10.0)
    assert line == "download | 1.0 GiB of 4.0 GiB (25 %) | 102 MiB/s | 30 s left | 2 of 3 b"


def test_the_rate_follows_the_last_looks_only() -> None:
    meter = Meter(0.0)
    for second in range(100):
        line = meter.look({**STATE, "done": second * (1 << 20) if second < 50 else (50 << 20)}, float(second))
    assert "/s" not in line


def test_a_new_phase_starts_a_new_rate() -> None:
    meter = Meter(0.0)
    meter.look(STATE, 0.0)
    meter.look({**STATE, "done": 1 << 30}, 10.0)
    assert "/s" not in meter.look({**STATE, "phase": "verify", "done": 0}, 11.0)


def test_what_has_no_total_shows_its_time() -> None:
    meter = Meter(0.0)
    state = {"phase": "starting", "unit": "bytes", "done": 0, "total": 0, "item": 0, "items": 0, "current": ""}
    assert meter.look(state, 75.0) == "starting | 1 min 15 s"
    assert meter.look({**state, "current": "loading weights"}, 80.0) == "starting | loading weights"


def test_other_units_are_counted() -> None:
    state = {**STATE, "unit": "layers", "done": 3, "total": 12, "items": 0, "current": ""}
    assert Meter(0.0).look(state, 0.0) == "download | 3 of 12 layers (25 %)"


def test_only_an_advance_ends_a_stall() -> None:
    meter = Meter(0.0)
    meter.look(STATE, 1.0)
    meter.look(STATE, 50.0)
    assert meter.stalled(51.0) == 50.0
    meter.look({**STATE, "done": 1}, 60.0)
    assert meter.stalled(61.0) == 1.0


def test_an_advance_in_another_item_counts_when_the_sum_rests() -> None:
    meter = Meter(0.0)
    meter.look(STATE, 1.0)
    meter.look({**STATE, "current": "other"}, 30.0)
    assert meter.stalled(31.0) == 1.0
