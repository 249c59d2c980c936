"""Linear programs, with whole numbers or without, as plain arrays built step by step.

Solver processes import this module, so it must not import anything slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Terms = tuple[IntArray, ArrayLike, IntArray]
"""Rows, coefficients and variables, which are broadcast against each other."""


@dataclass(frozen=True, eq=False)
class Model:
    """Minimise ``cost @ x`` where ``lower <= x <= upper`` and ``row_lower <= A @ x <= row_upper``.

    Attributes
    ----------
    cost, lower, upper : float arrays, shape (n_variables,)
    integral : bool array, shape (n_variables,)
        Which variables are integral.
    row_ptr, column, value : arrays
        The matrix A by rows (CSR).
    row_lower, row_upper : float arrays, shape (n_rows,)
    """

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    integral: NDArray[np.bool_]
    row_ptr: IntArray
    column: IntArray
    value: FloatArray
    row_lower: FloatArray
    row_upper: FloatArray

    @property
    def n_variables(self) -> int:
        return len(self.cost)

    @property
    def n_rows(self) -> int:
        return len(self.row_lower)


class ModelBuilder:
    """Collects variables and rows, whole arrays at a time."""

    def __init__(self) -> None:
        self._cost: list[FloatArray] = []
        self._lower: list[FloatArray] = []
        self._upper: list[FloatArray] = []
        self._integral: list[NDArray[np.bool_]] = []
        self._row: list[IntArray] = []
        self._column: list[IntArray] = []
        self._value: list[FloatArray] = []
        self._row_lower: list[FloatArray] = []
        self._row_upper: list[FloatArray] = []
        self._n_variables = self._n_rows = 0

    def variables(
        self,
        *shape: int,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        integral: bool = False,
        cost: ArrayLike = 0.0,
    ) -> IntArray:
        """Add variables; return their numbers in the requested shape."""
        size = int(np.prod(shape))
        for into, value in ((self._cost, cost), (self._lower, lower), (self._upper, upper)):
            into.append(np.broadcast_to(np.asarray(value, dtype=float), shape).ravel())
        self._integral.append(np.full(size, integral))
        first, self._n_variables = self._n_variables, self._n_variables + size
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def rows(
        self,
        terms: Sequence[tuple[ArrayLike, IntArray]],
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
    ) -> None:
        """Add ``lower <= sum of coefficient * variable <= upper`` for each element of the arrays.

        Parameters
        ----------
        terms : sequence of (coefficients, variables)
            Broadcast against each other; row i uses element i of each.
        """
        shape = np.broadcast_shapes(*(np.shape(part) for term in terms for part in term))
        each = np.arange(int(np.prod(shape)))
        for coefficient, variable in terms:
            self._add(
                each,
                np.broadcast_to(variable, shape).ravel(),
                np.broadcast_to(np.asarray(coefficient, dtype=float), shape).ravel(),
            )
        self._end_rows(len(each), lower, upper, shape)

    def sums(
        self,
        n_rows: int,
        terms: Sequence[Terms],
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
    ) -> None:
        """Add rows of any length.

        Parameters
        ----------
        terms : sequence of (rows, coefficients, variables)
            Broadcast against each other; entries of one row and variable add up.
        """
        for row, coefficient, variable in terms:
            shape = np.broadcast_shapes(np.shape(row), np.shape(coefficient), np.shape(variable))
            self._add(
                np.broadcast_to(row, shape).ravel(),
                np.broadcast_to(variable, shape).ravel(),
                np.broadcast_to(np.asarray(coefficient, dtype=float), shape).ravel(),
            )
        self._end_rows(n_rows, lower, upper, (n_rows,))

    def model(self) -> Model:
        """Return the model of everything that was added."""
        row, column = np.concatenate(self._row), np.concatenate(self._column)
        by_row = np.lexsort((column, row))
        row, column = row[by_row], column[by_row]
        value = np.concatenate(self._value)[by_row]
        # Entries of one row and variable add up.
        first = np.ones(len(row), dtype=bool)
        first[1:] = (np.diff(row) != 0) | (np.diff(column) != 0)
        starts = np.flatnonzero(first)
        value = np.add.reduceat(value, starts) if len(value) else value
        kept = starts[value != 0]
        return Model(
            cost=np.concatenate(self._cost),
            lower=np.concatenate(self._lower),
            upper=np.concatenate(self._upper),
            integral=np.concatenate(self._integral),
            row_ptr=np.searchsorted(row[kept], np.arange(self._n_rows + 1)),
            column=column[kept],
            value=value[value != 0],
            row_lower=np.concatenate(self._row_lower),
            row_upper=np.concatenate(self._row_upper),
        )

    def _add(self, row: IntArray, column: IntArray, value: FloatArray) -> None:
        self._row.append(row + self._n_rows)
        self._column.append(column)
        self._value.append(value)

    def _end_rows(
        self, n_rows: int, lower: ArrayLike, upper: ArrayLike, shape: tuple[int, ...]
    ) -> None:
        for into, value in ((self._row_lower, lower), (self._row_upper, upper)):
            into.append(np.broadcast_to(np.asarray(value, dtype=float), shape).ravel())
        self._n_rows += n_rows


def give_to_highs(model: Model) -> Any:
    """Return a HiGHS that has a program yet to solve: a ``highspy.Highs``."""
    import highspy  # takes a while

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.n_variables, model.n_rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = model.cost, model.lower, model.upper
    lp.row_lower_, lp.row_upper_ = model.row_lower, model.row_upper
    kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
    lp.integrality_ = [kinds[int(whole)] for whole in model.integral]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.row_ptr.astype(np.int32)
    lp.a_matrix_.index_ = model.column.astype(np.int32)
    lp.a_matrix_.value_ = model.value
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(lp)
    return solver
