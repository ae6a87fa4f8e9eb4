"""What an action of `Proposal-v0` says: which Beta distribution each gene is drawn from, among a few.

The two papers differ. The ICLR paper quantises mean and variance (a gene has one index; its best agent has "a choice
of 16 different node placement actions"); the workshop paper samples alpha and beta from a softmax each (a gene has two
indices, eq. 1). Neither prints its values. Ours:

- "moments": the uniform distribution, and fifteen means of one small spread, alpha + beta = 128. The variance of a Beta
  distribution is mean (1 - mean) / (alpha + beta + 1), below mean (1 - mean) always. Many means and a small variance
  say in which order ops should run, and whether the affinities of two devices differ for sure, in most samples or at
  random: at few evaluations policies learned faster than with five means at each of three spreads.
- "shapes": alpha and beta each from powers of two from 1/2 to 16; (1, 1) is the uniform.

The uniform is among the choices of both, and is exact: an action that chooses it for all genes earns -1.
"""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.specs import ArraySpec, choices
from graphrl.errors import ProblemError
from graphrl.graphs.padding import Sizes
from graphrl.solvers.chromosomes.beta import UNIFORM, BetaTable, beta_table

CodingName = Literal["moments", "shapes"]
MEANS = tuple(i / 16 for i in range(1, 16))
CONCENTRATION = 128.0  # alpha + beta; the uniform's is 2
SHAPES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclasses.dataclass(frozen=True)
class Coding:
    """The distributions that an action chooses from. Static and hashable.

    Attributes:
      heads: values of every index of a gene: one entry for each index.
      alpha, beta: of the distributions, the last index running fastest. (1, 1) is the uniform.
    """

    heads: tuple[int, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    @property
    def values(self) -> int:
        """Values of an index: all of a gene's have as many."""
        return self.heads[0]

    @property
    def uniform(self) -> tuple[int, ...]:
        """The indices that choose the uniform distribution."""
        place = list(zip(self.alpha, self.beta, strict=True)).index((1.0, 1.0))
        return tuple(int(index) for index in np.unravel_index(place, self.heads))

    def nearest(self, mean: jax.Array) -> jax.Array:
        """The indices of the distribution whose mean is nearest, of such the surest: `[...]` float32 between 0 and 1 to
        `[...]` int32 where a gene has one index, `[..., 2]` where it has two.
        """
        alpha, beta = np.array(self.alpha), np.array(self.beta)
        surest = np.lexsort((-alpha - beta, alpha / (alpha + beta)))  # of equal means the first
        means, first = np.unique((alpha / (alpha + beta))[surest], return_index=True)
        middles = ((means[1:] + means[:-1]) / 2).astype(np.float32)
        row = jnp.asarray(surest[first], jnp.int32)[jnp.searchsorted(middles, mean)]
        return row if len(self.heads) == 1 else jnp.stack(jnp.unravel_index(row, self.heads), -1)

    def action_spec(self, ops: int, devices: int) -> ArraySpec:
        """`[n, d + 1]` int32 where a gene has one index, `[n, d + 1, 2]` where it has two: see `proposals`."""
        extra = self.heads[1:] and (len(self.heads),)
        return choices((ops, devices + 1, *extra), self.values)


def coding(name: CodingName) -> Coding:
    """The coding of that name.

    Raises:
      ProblemError: there is none.
    """
    if name not in _CODINGS:
        raise ProblemError(f"coding is {name!r}: must be one of {', '.join(_CODINGS)}")
    return _CODINGS[name]


def _moments() -> Coding:
    pairs = [(1.0, 1.0)] + [(mean * CONCENTRATION, (1 - mean) * CONCENTRATION) for mean in MEANS]
    alpha, beta = zip(*pairs, strict=True)
    return Coding((len(pairs),), alpha, beta)


def _shapes() -> Coding:
    alpha, beta = zip(*((a, b) for a in SHAPES for b in SHAPES), strict=True)
    return Coding((len(SHAPES),) * 2, alpha, beta)


_CODINGS: dict[str, Coding] = {"moments": _moments(), "shapes": _shapes()}


def gene_choices(action: jax.Array, coding: Coding, sizes: Sizes, devices: int) -> jax.Array:
    """The distribution of every gene of a chromosome: `[k]` int32, `UNIFORM` for transfer keys and for the uniform.

    Args:
      action: of `Coding.action_spec`: for each op, the choice of its affinity to each device and of its priority.
      coding: what the action is in.
      sizes: of the padded graph.
      devices: d.
    """
    row = action if len(coding.heads) == 1 else action[..., 0] * coding.heads[1] + action[..., 1]
    row = jnp.where(row == np.ravel_multi_index(coding.uniform, coding.heads).astype(np.int32), UNIFORM, row)
    transfers = jnp.full(devices * sizes.tensors, UNIFORM, jnp.int32)  # REGAL does not learn them (workshop A.2)
    return jnp.concatenate([row.T.reshape(-1), transfers])


def chosen(choice: jax.Array, coding: Coding) -> BetaTable:
    """The distributions of a coding, and which of them each gene has: `[k, g]` int32."""
    logit, lower, upper = map(jnp.asarray, _tabulated(coding))
    return BetaTable(logit, lower, upper, choice)


@functools.cache
def _tabulated(coding: Coding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The quantile functions of all distributions of a coding, computed once a process."""
    with jax.ensure_compile_time_eval():  # also where this is first asked for inside a jitted function
        shapes = (np.asarray(values, np.float32)[:, None] for values in (coding.alpha, coding.beta))
        table = jax.jit(beta_table)(*shapes)
        return np.asarray(table.logit), np.asarray(table.lower_rate), np.asarray(table.upper_rate)
