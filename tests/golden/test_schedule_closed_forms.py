"""Formulas of the papers, and of ours, each in the region where it is right; and the facts that no formula tells.

D, N of the Chimera paper are ranks p and microbatches m here; B = I + W is a whole backward; tc the latency of a message.
"idle" is the makespan (or a rank's own span, where said) less the work of a rank.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_walk import figures

from simulator.schedules import SCHEDULES, Shape

RANKS = st.integers(2, 8)
EVEN_RANKS = st.sampled_from([2, 4, 6, 8])
TIME = st.integers(1, 9)
FEW = settings(max_examples=25, deadline=None)


def of(name: str, p: int, m: int, v: int = 1, times: tuple[float, ...] = (1, 1, 1), tc: float = 0) -> dict:
    """Return the figures of a schedule; `times` are F, I, W."""
    return figures(SCHEDULES.get(name), Shape(p, m, v), dict(zip("FIW", times, strict=True)), tc)


def makespan(name: str, p: int, m: int, v: int = 1, times: tuple[float, ...] = (1, 1, 1), tc: float = 0) -> float:
    """Return the time of a step."""
    return of(name, p, m, v, times, tc)["makespan"][0]


def idle(name: str, p: int, m: int, v: int = 1, times: tuple[float, ...] = (1, 1, 1)) -> float:
    """Return makespan less the work of a rank."""
    return makespan(name, p, m, v, times) - m * sum(times)


def idle_in_span(name: str, p: int, m: int, v: int = 1, times: tuple[float, ...] = (1, 1, 1)) -> float:
    """Return the longest idle time between the first start and the last end of a rank."""
    return of(name, p, m, v, times)["max_idle_within_device_span"][0]


def bubble(name: str, p: int, m: int, v: int = 1, times: tuple[float, ...] = (1, 1, 1), tc: float = 0) -> float:
    """Return the idle share of the step."""
    return of(name, p, m, v, times, tc)["bubble_ratio"][0]


@FEW
@given(RANKS, st.integers(1, 24), TIME, TIME, TIME, TIME)
def test_gpipe_pays_its_fill_and_two_crossings_once(p: int, m: int, f: int, i: int, w: int, tc: int) -> None:
    assert (m + p - 1) * (f + i + w) + 2 * (p - 1) * tc == makespan("gpipe", p, m, 1, (f, i, w), tc)


@FEW
@given(RANKS, st.integers(1, 24), TIME, TIME, TIME, TIME)
def test_one_f_one_b_pays_two_crossings_every_p_microbatches(p: int, m: int, f: int, i: int, w: int, tc: int) -> None:
    q, r = divmod(m - 1, p)
    expected = (m + p - 1) * (f + i + w) + 2 * tc * ((p - 1) * (q + 1) + max(0, r - 1))
    assert expected == makespan("1f1b", p, m, 1, (f, i, w), tc)


@FEW
@given(RANKS, TIME, TIME, TIME, TIME)
def test_the_steady_period_of_one_f_one_b(p: int, f: int, i: int, w: int, tc: int) -> None:
    assert p * (f + i + w) + 2 * (p - 1) * tc == pytest.approx(makespan("pipedream", p, p, 1, (f, i, w), tc))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_eager_hides_half_a_turn_of_latency_per_hop(p: int) -> None:
    """Up to tc = (F + B)/2 a turn costs nothing more: the step pays 2(p-1)tc once, as GPipe does; beyond, it does."""
    for tc, hidden in ((0.5, True), (1.5, True), (1.75, False)):
        once = (8 * p + p - 1) * 3 + 2 * (p - 1) * tc
        assert hidden == (makespan("eager_1f1b", p, 8 * p, 1, (1, 1, 1), tc) <= once + 1e-9)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("name", ["interleaved", "breadth_first", "looped_bfs", "seq1f1b"])
def test_chunks_and_slices_divide_the_bubble(name: str, p: int) -> None:
    for v in (2, 4):
        assert (p - 1) * 14 / v == pytest.approx(idle(name, p, 3 * p, v, (5, 4, 5)))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_peaks_of_one_lane(p: int) -> None:
    peaks = {
        name: of(name, p, 3 * p)["peak_activations_per_device"] for name in ("gpipe", "1f1b", "eager_1f1b", "gems")
    }
    assert [3 * p] * p == peaks["gpipe"]
    assert [p - i for i in range(p)] == peaks["1f1b"]
    assert [2 * (p - i) - 1 for i in range(p)] == peaks["eager_1f1b"]
    assert [1] * p == of("gems", p, 4 * p)["peak_activations_per_device"]
    for v in (2, 4):
        assert p + (p - 1) / v == of("interleaved", p, 3 * p, v)["peak_activations_per_device"][0]
        assert [3 * p] * p == of("breadth_first", p, 3 * p, v)["peak_activations_per_device"]
        slices = of("seq1f1b", p, 3 * p, v)["peak_activations_per_device"]
        assert [(p - i - 1 + v) / v for i in range(p)] == slices


@FEW
@given(RANKS, st.integers(0, 20), TIME, TIME, TIME)
def test_zb_h1_where_w_is_no_longer_than_f(p: int, more: int, f: int, i: int, w: int) -> None:
    assume(w <= f and i <= f + w)
    assert (p - 1) * (f + i - w) == idle_in_span("zb_h1", p, p + more, 1, (f, i, w))


def test_zb_h1_beyond_that_region_is_worse_than_its_formula() -> None:
    assert (18, 21) == (3 * (10 + 7 - 11), idle_in_span("zb_h1", 4, 8, 1, (10, 7, 11)))


@FEW
@given(RANKS, st.integers(0, 20), TIME, TIME, TIME)
def test_zb_h2_where_w_is_short_and_microbatches_are_enough(p: int, more: int, f: int, i: int, w: int) -> None:
    assume(w <= f and i <= f + w and 2 * w <= f + i)
    assert (p - 1) * (f + i - 2 * w) == idle_in_span("zb_h2", p, 2 * p - 1 + more, 1, (f, i, w))


@pytest.mark.parametrize(("p", "unequal"), [(4, 18), (8, 42)])
def test_zbv_is_without_bubble_at_equal_times_only(p: int, unequal: float) -> None:
    assert 0 == idle_in_span("zbv", p, 2 * p - 1, 2)
    assert unequal == idle_in_span("zbv", p, 4 * p, 2, (10, 13, 7))
    assert [p] * p == of("zbv", p, 4 * p, 2)["peak_activations_per_device"]


@pytest.mark.parametrize(("p", "half", "least"), [(4, 6, 5.5), (8, 13, 13.5)])
def test_v_half_and_v_min_trade_bubble_for_memory(p: int, half: float, least: float) -> None:
    assert (half, least) == (idle("v_half", p, 4 * p, 2), idle("v_min", p, 4 * p, 2))
    assert p / 2 + 1 == max(of("v_half", p, 4 * p, 2)["peak_activations_per_device"])


def test_the_bubble_of_v_min_grows_at_unequal_times() -> None:
    assert 0.31 == pytest.approx(bubble("v_min", 8, 32, 2, (10, 13, 7)), abs=0.005)
    assert 0.18 == pytest.approx(bubble("1f1b", 8, 32, 1, (10, 13, 7)), abs=0.005)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("time", [1, 3])
def test_dualpipe_at_equal_times(p: int, time: int) -> None:
    pair = 3 * time
    times = (time, time, time)
    assert (p / 2 - 1) * (pair + 2 * time - 3 * time) == idle_in_span("dualpipe", p, 4 * p, 1, times)
    assert (p - 1) * (pair + 2 * time - 3 * time) / 2 == idle_in_span("dualpipev", p, 4 * p, 2, times)
    assert [p + 1] * p == of("dualpipe", p, 4 * p, 1, times)["peak_activations_per_device"]
    assert [p + 0.5] * p == of("dualpipev", p, 4 * p, 2, times)["peak_activations_per_device"]


def test_dualpipe_at_other_times_is_not_its_formula() -> None:
    """Formula (p/2-1)(F&B + B - 3W): 3 and 29; the released order takes 4 and 26."""
    assert (4, 26) == tuple(idle_in_span("dualpipe", 4, 16, 1, times) for times in ((2, 1, 1), (10, 13, 7)))


@FEW
@given(EVEN_RANKS, st.integers(1, 4), TIME, TIME, TIME)
def test_chimera_direct_has_more_bubble_with_every_unit(p: int, units: int, f: int, i: int, w: int) -> None:
    b = i + w
    assume(b >= f)
    assert (p - 2) * (b + (units - 1) * (b - f)) == idle("chimera", p, units * p, 1, (f, i, w))


@FEW
@given(EVEN_RANKS, st.integers(1, 3), TIME, TIME, TIME)
def test_chimera_doubling_and_halving(p: int, units: int, f: int, i: int, w: int) -> None:
    assume(f <= i + w <= 2 * f)
    expected = (p - 2) * (f + (i + w) / 2)
    assert expected == pytest.approx(idle("chimera_doubling", p, 2 * units * p, 1, (f, i, w)))
    assert expected / 2 == pytest.approx(idle("chimera_halving", p, units * p, 1, (f, i, w)))


@pytest.mark.parametrize("p", [4, 6, 8])
def test_the_bubble_ratio_that_the_chimera_paper_quotes(p: int) -> None:
    """(D-2)/(1.5N+D-2) for B = 2F: right for N = D."""
    assert (p - 2) / (1.5 * p + p - 2) == pytest.approx(bubble("chimera", p, p))


@pytest.mark.parametrize("p", [4, 6, 8])
def test_chimera_direct_loses_to_one_f_one_b_from_some_units_on(p: int) -> None:
    """With B = 2F and free messages once N/D > (2D-1)/(D-2)."""
    for units in range(1, 6):
        loses = bubble("chimera", p, units * p) > bubble("1f1b", p, units * p)
        assert (units > (2 * p - 1) / (p - 2)) == loses


@pytest.mark.parametrize(("name", "pairs"), [("chimera", 1), ("chimera_4", 2), ("chimera_8", 4)])
def test_more_pipelines_leave_fewer_bubbles_in_a_unit(name: str, pairs: int) -> None:
    """D/f - 2 slots at F = B and N = D, for 2f copies of the weights."""
    for p in (8, 16):
        assert p / pairs - 2 == idle(name, p, p, 1, (2, 1, 1)) / 2
        assert 2 * pairs == SCHEDULES.get(name).placement(Shape(p, p)).weight_copies().max()


@pytest.mark.parametrize("p", [4, 8, 16])
def test_peaks_of_two_directions(p: int) -> None:
    assert [p / 2 + 1 + min(i, p - 1 - i) for i in range(p)] == of("chimera", p, p)["peak_activations_per_device"]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_gems_is_nearly_all_bubble(p: int) -> None:
    """The ratio (D-1)/(D+1/2) for B = 2F is its limit for many microbatches; the first one is D-1 forwards dearer."""
    m = 6
    assert (p - 1) + m * (2 * p + 1) == makespan("gems", p, m)
    limit = (p - 1) / (p + 1 / 2)
    assert limit == pytest.approx(1 - 3 / (makespan("gems", p, m + 2) - makespan("gems", p, m)) * 2)


@pytest.mark.parametrize(("p", "idles"), [(4, (6, 3.25, 1.625)), (8, (14, 7.5, 3.75))])
def test_waves_divide_the_bubble_of_hanayo(p: int, idles: tuple[float, ...]) -> None:
    assert idles == pytest.approx(tuple(idle("hanayo", p, p, 2 * waves) for waves in (1, 2, 4)))


@pytest.mark.parametrize(
    ("name", "v", "free", "late"),
    [
        ("interleaved", 4, 5.2, 15.5),
        ("interleaved", 2, 9.9, 14.7),
        ("seq1f1b", 4, 5.2, 34.8),
        ("1f1b", 1, 17.9, 26.5),
        ("eager_1f1b", 1, 17.9, 19.9),
        ("gpipe", 1, 17.9, 19.9),
        ("zbv", 2, 3.5, 9.5),
        ("dualpipe", 1, 5.9, 12.2),
    ],
)
def test_latency_turns_the_ranking_round(name: str, v: int, free: float, late: float) -> None:
    """Bubble in percent at p=8, m=32, F = I = W = 1, without latency and with a fifth of F per hop."""
    assert (free, late) == pytest.approx(
        tuple(100 * bubble(name, 8, 32, v, (1, 1, 1), tc) for tc in (0, 0.2)), abs=0.05
    )


@pytest.mark.parametrize(
    ("name", "p", "expected"), [("half", 4, 2.5), ("half", 8, 8.5), ("min", 4, 5.5), ("min", 8, 13.5)]
)
def test_reordering_saves_what_the_authors_code_saves_and_holds_no_more(name: str, p: int, expected: float) -> None:
    pattern, better = f"v_{name}", f"v_{name}_reordered"
    for m in (2 * p, 4 * p):
        assert expected == idle(better, p, m, 2)
        peaks = [max(of(each, p, m, 2)["peak_activations_per_device"]) for each in (pattern, better)]
        assert peaks[1] <= peaks[0]


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_bitpipe_halves_the_bubble_of_chimera_in_one_unit(p: int) -> None:
    """(D-2) F at N = D and B = 2F, where Chimera has (D-2) B; about as many activations as microbatches at most."""
    assert p - 2 == idle("bitpipe", p, p, 2)
    assert 2 * (p - 2) == idle("chimera", p, p)
    assert max(of("bitpipe", p, p, 2)["peak_activations_per_device"]) <= p


@FEW
@given(RANKS, st.integers(1, 6), st.integers(2, 5), TIME, TIME)
def test_terapipe_pays_its_fill_in_slices(p: int, m: int, v: int, f: int, i: int) -> None:
    """Sum of t_k + (p-1) max t_k, per direction; slices equal."""
    assert (m * v + p - 1) * (f + 2 * i) / v == pytest.approx(makespan("terapipe", p, m, v, (f, i, i)))
    assert [m] * p == pytest.approx(of("terapipe", p, m, v)["peak_activations_per_device"])


@pytest.mark.parametrize("p", [2, 4, 8])
def test_slimpipe_holds_little_more_than_one_microbatch(p: int) -> None:
    for v in (4, 16):
        peaks = of("slimpipe", p, 4 * p, v)["peak_activations_per_device"]
        assert [1 + 2 * (p - 1 - i) / v for i in range(p)] == pytest.approx(peaks)
        assert (p - 1) * 3 / v == pytest.approx(idle("slimpipe", p, 4 * p, v))


@FEW
@given(RANKS, st.integers(2, 3), st.integers(1, 3), TIME, TIME, TIME)
def test_looped_zero_bubble_where_w_is_no_longer_than_f(p: int, v: int, rounds: int, f: int, i: int, w: int) -> None:
    """(p-1)(F+I-W)/v, in the region of ZB-H1; peak p on every rank."""
    assume(w <= f and i <= f + w)
    assert (p - 1) * (f + i - w) / v == pytest.approx(idle_in_span("zb_interleaved", p, rounds * p, v, (f, i, w)))
    assert [p] * p == pytest.approx(of("zb_interleaved", p, 2 * p, v)["peak_activations_per_device"])


@pytest.mark.parametrize("p", [2, 4, 8])
def test_peaks_of_zero_bubble(p: int) -> None:
    assert [p] * p == of("zb_h1", p, 3 * p)["peak_activations_per_device"]
    assert [2 * p - 1] * p == of("zb_h2", p, 3 * p)["peak_activations_per_device"]


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("time", [1, 2])
def test_zero_bubble_is_of_each_ranks_own_span(p: int, time: int) -> None:
    """A step that ends for all ranks at once, as with a global gradient norm, still pays (p-1)F/2."""
    times = (time, time, time)
    assert 0 == idle_in_span("zbv", p, 2 * p, 2, times)
    assert (p - 1) * time / 2 == idle("zbv", p, 2 * p, 2, times)


@pytest.mark.parametrize("p", [4, 8])
def test_doubling_holds_twice_what_chimera_holds_and_halving_as_much(p: int) -> None:
    plain = of("chimera", p, p)["peak_activations_per_device"]
    assert [2 * held for held in plain] == of("chimera_doubling", p, 2 * p)["peak_activations_per_device"]
    assert plain == of("chimera_halving", p, p)["peak_activations_per_device"]


@pytest.mark.parametrize(
    ("names", "v", "crossings"),
    [
        (("gpipe", "1f1b", "eager_1f1b", "pipedream", "pipedream_2bw", "zb_h1", "zb_h2", "chimera", "gems", "dualpipe"), 1,
         lambda p, v: p - 1),
        (("seq1f1b", "terapipe", "slimpipe"), 2, lambda p, v: p - 1),
        (("interleaved", "breadth_first", "zb_interleaved"), 3, lambda p, v: p * v - 1),
        (("zbv", "v_half", "v_min", "dualpipev"), 2, lambda p, v: 2 * p - 2),
        (("hanayo",), 4, lambda p, v: v * (p - 1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("p", [2, 4, 8])
def test_every_boundary_between_ranks_is_crossed_once_each_way(names: tuple, v: int, crossings: object, p: int) -> None:
    """Volume 2m(p-1), 2m(pv-1) round and round, 2m v(p-1) in waves, whose turns are free; two lanes share the microbatches."""
    for name in names:
        m = 2 * p
        assert 2 * m * crossings(p, v) == pytest.approx(of(name, p, m, v)["p2p_volume_total"][0])  # type: ignore[operator]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_what_never_flushes_keeps_versions_instead_of_a_bubble(p: int) -> None:
    for name, copies in (("pipedream", [p - i for i in range(p)]), ("pipedream_2bw", [2] * p)):
        found = of(name, p, 2 * p)
        assert 0 == pytest.approx(found["bubble_ratio"][0])
        assert [p - i for i in range(p)] == found["peak_activations_per_device"]
        assert copies == found["weight_copies_per_device"]
