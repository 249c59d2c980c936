"""What a pixel column shows: how much of it a row is busy, and how high a curve rises in it."""

from __future__ import annotations

import numpy as np

from enplace.values.profile import FloatArray, IntArray


class BusyCurve:
    """The total length of intervals before any moment; intervals may overlap.

    Parameters
    ----------
    start_us, finish_us : float array, shape (n,)
        The intervals, in any order.
    """

    def __init__(self, start_us: FloatArray, finish_us: FloatArray) -> None:
        self._starts, self._start_sums = _with_sums(start_us)
        self._finishes, self._finish_sums = _with_sums(finish_us)

    def before(self, time_us: FloatArray) -> FloatArray:
        """Sum the parts of the intervals that lie before each moment.

        An interval from s to f contributes max(t - s, 0) - max(t - f, 0).
        """
        started = np.searchsorted(self._starts, time_us)
        ended = np.searchsorted(self._finishes, time_us)
        sums = self._start_sums[started] - self._finish_sums[ended]
        return (started - ended) * time_us - sums

    def fractions(self, edges_us: FloatArray) -> FloatArray:
        """Compute the busy fraction between adjacent edges; above 1 if intervals overlap.

        Parameters
        ----------
        edges_us : float array, shape (n_columns + 1,)
            Ascending.
        """
        return np.diff(self.before(edges_us)) / np.diff(edges_us)


def _with_sums(times_us: FloatArray) -> tuple[FloatArray, FloatArray]:
    ordered = np.sort(times_us)
    return ordered, np.concatenate([[0.0], np.cumsum(ordered)])


def highest_per_column(
    time_us: FloatArray, values: FloatArray | IntArray, edges_us: FloatArray
) -> FloatArray:
    """Find the maximum of a step curve in each column, so that no peak is lost.

    Parameters
    ----------
    time_us, values : float array, shape (n,); values may be whole
        ``values[i]`` holds from ``time_us[i]`` on; ``time_us[0]`` is not after the first edge.
    edges_us : float array, shape (n_columns + 1,)
    """
    at_left = np.searchsorted(time_us, edges_us[:-1], side="right") - 1
    until = np.maximum(np.searchsorted(time_us, edges_us[1:], side="left"), at_left + 1)
    bounds = np.column_stack([at_left, until]).ravel()
    padded = np.append(values, -np.inf)
    return np.maximum.reduceat(padded, bounds)[::2]
