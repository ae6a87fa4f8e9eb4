"""Sizes, FLOPs, memory traffic and shapes of jaxpr equations; the work of loops and branches from that of their bodies.

- `equation_flops`: a multiply-add is two operations; every element-wise operation, transcendental or integer, is one
  per output element; moving data costs none. A convolution counts its padding (as kernels compute it) but not the holes
  of dilation, so that forward and backward convolutions of one layer count the same. Dense factorisations take the
  leading terms of Golub and Van Loan, "Matrix Computations". Primitives without a rule count one per output element.
- `bytes_moved`, `array_bytes`: memory traffic and sizes, bytes.
- `equation_layer`: shapes of a layer. Arrays count as batch first and channels last, except for convolutions, which
  state their dimensions.
- `inner_work`: work of an equation with inner jaxprs, given the work of one run of each, by its primitive:

  - `scan`: the body times its length;
  - `while`: condition and body times the trip count if it is known (a counter that starts at, is compared with and
    grows by literal integers), else one trip;
  - `cond`: the most expensive branch, for each figure separately;
  - `shard_map`: run time and workspace of one shard, FLOPs of all;
  - `pallas_call`: its own cost estimate, else the body's FLOPs times the grid;
  - `custom_linear_solve`: its `solve`; any other primitive: each inner jaxpr once.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import hijax
from jax.extend import core

from graphrl.errors import GraphError
from graphrl.graphs.layers import Layer, Window
from graphrl.graphs.readers.work import Work, costliest, in_turn, repeated, traffic

HIGH_LEVEL: Any = hijax.HiPrim if hasattr(hijax, "HiPrim") else hijax.VJPHiPrimitive  # jax 0.12 renamed the class
RANDOM_FLOPS = 50  # per 32-bit word: 20 rounds of add, rotate and xor over a pair of words, plus the key schedule

DATA_MOVEMENT = frozenset(
    str.split(
        """
        after_all all_gather all_to_all bitcast_convert_type broadcast broadcast_in_dim concatenate copy copy_p
        convert_element_type create_token device_put dynamic_slice dynamic_update_slice empty empty2 expand_dims freeze
        gather get iota mutable_array name new_ref optimization_barrier pad ppermute pvary ragged_all_to_all
        random_unwrap random_wrap reshape rev scatter select_n sharding_constraint slice split squeeze stack
        stop_gradient swap tile transpose unstack
        """
    )
)
INPUT_SIZED = frozenset(
    str.split(
        """
        argmax argmin cumlogsumexp cummax cummin cumprod cumsum pmax pmin psum psum_invariant reduce_and reduce_max
        reduce_min reduce_or reduce_precision reduce_prod reduce_scatter reduce_sum reduce_xor
        """
    )
)
# Ops that read no more of their first operand than they write.
PARTIAL_READS = frozenset({"dynamic_slice", "gather", "slice"})

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def equation_flops(equation: Any) -> int:
    """Counts the FLOPs of an equation whose primitive has no relevant inner jaxprs (`inner_work` costs the others)."""
    name = equation.primitive.name
    if name in DATA_MOVEMENT:
        return 0
    if name in INPUT_SIZED:
        return sum(array_size(atom.aval) for atom in equation.invars)
    rule = _RULES.get(name)
    return _outputs(equation) if rule is None else int(rule(equation))


def bytes_moved(equation: Any, input_bytes: list[int], output_bytes: int) -> int:
    """Counts bytes between memory and chip, each input and output once; slices and gathers read only what they take."""
    return traffic(input_bytes, output_bytes, partial=equation.primitive.name in PARTIAL_READS)


def array_bytes(aval: Any) -> int:
    """Returns the size in bytes of an abstract value; 0 for tokens."""
    dtype = getattr(aval, "dtype", None)
    return 0 if dtype is None else (array_size(aval) * element_bits(dtype) + 7) // 8


def array_size(aval: Any) -> int:
    """Returns the number of elements of an abstract value; 0 for tokens and other values without a shape.

    Raises:
      GraphError: a dimension is symbolic.
    """
    shape = getattr(aval, "shape", None)
    if shape is None:
        return 0
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise GraphError(f"array of shape {shape} has a symbolic dimension: trace the function with concrete sizes")
    return math.prod(int(size) for size in shape)


@functools.cache
def element_bits(dtype: Any) -> int:
    """Returns the bits of one array element: sub-byte types are packed, a random key counts as its key data."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return 8 * int(getattr(dtype, "itemsize", 0))
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return 8 * data.size * data.dtype.itemsize
    if dtype == jax.dtypes.float0:
        return 0
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    if jnp.issubdtype(dtype, jnp.floating):
        return int(jnp.finfo(dtype).bits)
    return 8 * np.dtype(dtype).itemsize


def equation_layer(equation: Any) -> Layer | None:
    """Returns the shapes of an equation's first operand and result; None without shapes."""
    shapes: list[Any] = [getattr(atom.aval, "shape", None) for atom in (*equation.invars[:1], *equation.outvars[:1])]
    if not shapes or None in shapes:
        return None
    if equation.primitive.name == "conv_general_dilated":
        return _convolution_layer(equation.params, equation.invars[1].aval.shape, *shapes)
    return Layer.of(shapes[0], shapes[-1], _pooling(equation.params))


def inner_work(equation: Any, bodies: Mapping[str, Work], literals: Sequence[Any]) -> Work:
    """Costs an equation with inner jaxprs; `literals` has the value of each operand that is a literal, else None."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _loop([(bodies["jaxpr"], params["length"])])
    if name == "while":
        trips = trip_count(equation, literals)
        checks, runs = (1, 1) if trips is None else (trips + 1, trips)
        return _loop([(bodies["cond_jaxpr"], checks), (bodies["body_jaxpr"], runs)])
    if name == "cond":
        return costliest(list(bodies.values()))
    if name == "custom_linear_solve":
        return bodies["jaxprs.solve"]
    if name == "shard_map":
        return bodies["jaxpr"]._replace(flops=bodies["jaxpr"].flops * params["mesh"].size)
    if name == "pallas_call":
        return _kernel(params, bodies["jaxpr"])
    return in_turn(list(bodies.values()))


def inner_jaxprs(params: Mapping[str, Any]) -> dict[str, Any]:
    """Finds the jaxprs among an equation's parameters, by parameter name, in tuples with their index ("branches.0").

    A high-level primitive of jax, such as `jax.checkpoint` under `jax_remat3`, is expanded to its jaxpr.
    """
    inner = {}
    for key, value in params.items():
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
            inner[key] = value
        elif isinstance(value, HIGH_LEVEL):
            inner[key] = _expanded(value)
        elif isinstance(value, tuple | list):
            names = getattr(value, "_fields", range(len(value)))
            for name, item in zip(names, value, strict=True):
                if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                    inner[f"{key}.{name}"] = item
    return inner


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many operands of a `scan` are constant, and how many carried; each step takes a slice of the others.

    Since jax 0.11 its parameters have trees of operands in place of these two numbers.
    """
    if "ft_in" in params:
        constants, carried, _ = params["ft_in"].unpack()
        return len(constants), len(carried)
    return params["num_consts"], params["num_carry"]


def trip_count(equation: Any, literals: Sequence[Any]) -> int | None:
    """Counts the iterations of a `while` with a counter of known integers (start, limit, step); None for others."""
    params = equation.params
    cond, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    if len(cond.eqns) != 1 or cond.outvars[0] is not cond.eqns[0].outvars[0] or len(cond.eqns[0].invars) != 2:
        return None
    values = [*literals[:cond_consts], *literals[cond_consts + body_consts :]]
    numbers = {var: _integer(value) for var, value in zip(cond.invars, values, strict=True)}
    steps: dict[Any, int | None] = dict.fromkeys(cond.invars[:cond_consts], 0)
    carried = zip(cond.invars[cond_consts:], body.invars[body_consts:], body.outvars, strict=True)
    steps |= {var: _step(body, before, after) for var, before, after in carried}
    ends = []
    for atom in cond.eqns[0].invars:
        literal = isinstance(atom, core.Literal)
        ends.append((_integer(atom.val) if literal else numbers[atom], 0 if literal else steps[atom]))
    (left, left_step), (right, right_step) = ends
    relation = cond.eqns[0].primitive.name
    if left is None or right is None or relation not in MIRRORED:
        return None
    if left_step and right_step == 0:
        return _count(relation, left, right, left_step)
    return _count(MIRRORED[relation], right, left, right_step) if right_step and left_step == 0 else None


def _outputs(equation: Any) -> int:
    return sum(array_size(var.aval) for var in equation.outvars)


def _first(equation: Any) -> int:
    return array_size(equation.invars[0].aval)


@functools.cache
def _taps(outputs: int, kernel: int, stride: int, pad_low: int, base_dilation: int, kernel_dilation: int) -> int:
    """Counts (output position, kernel element) pairs along one dimension that do not fall into a hole of the input."""
    if base_dilation == 1:
        return outputs * kernel
    position = np.arange(outputs)[:, None] * stride + np.arange(kernel)[None, :] * kernel_dilation - pad_low
    return int(np.count_nonzero(position % base_dilation == 0))


def _convolution(equation: Any) -> int:
    params = equation.params
    kernel, output = equation.invars[1].aval, equation.outvars[0].aval
    numbers = params["dimension_numbers"]
    taps = 1
    for i, (k, o) in enumerate(zip(numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)):
        taps *= _taps(
            output.shape[o],
            kernel.shape[k],
            params["window_strides"][i],
            params["padding"][i][0],
            params["lhs_dilation"][i],
            params["rhs_dilation"][i],
        )
    batch, features = output.shape[numbers.out_spec[0]], output.shape[numbers.out_spec[1]]
    return 2 * taps * kernel.shape[numbers.rhs_spec[1]] * batch * features


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2 * _outputs(equation) * math.prod(shape[i] for i in contracted)


def _ragged_dot(equation: Any) -> int:
    """Counts FLOPs of a ragged product: every row is multiplied with the matrix of its own group only."""
    (contracted, _), _ = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    shape = equation.invars[0].aval.shape
    ragged = equation.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
    groups = equation.invars[2].aval.shape[-1] if any(i in contracted for i in ragged) else 1
    return 2 * _outputs(equation) * math.prod(shape[i] for i in contracted) // max(1, groups)


def _reduce(equation: Any) -> int:
    """Counts one evaluation of the combining function per element, at one FLOP for each of its equations."""
    return _first(equation) * max(1, len(equation.params["jaxpr"].eqns))


def _sort(equation: Any) -> int:
    length = equation.invars[0].aval.shape[equation.params["dimension"]]
    return _first(equation) * max(1, math.ceil(math.log2(max(2, length))))


def _top_k(equation: Any) -> int:
    return _first(equation) * max(1, math.ceil(math.log2(equation.params["k"] + 1)))


def _random(equation: Any) -> int:
    words = sum(-(-array_size(v.aval) * element_bits(v.aval.dtype) // 32) for v in equation.outvars)
    return RANDOM_FLOPS * words


def _integer_power(equation: Any) -> int:
    exponent = abs(int(equation.params["y"]))
    multiplications = max(1, exponent.bit_length() + exponent.bit_count() - 2)
    return _outputs(equation) * (multiplications + (equation.params["y"] < 0))


def _fft(equation: Any) -> int:
    points = math.prod(equation.params["fft_lengths"])
    return 5 * max(_first(equation), _outputs(equation)) * math.ceil(math.log2(max(2, points)))


def _matrix(formula: Callable[[int, int], float]) -> Callable[[Any], int]:
    """Makes a FLOPs rule for matrices in the last two dimensions: `formula(long side, short side)` for each."""

    def rule(equation: Any) -> int:
        *batch, rows, columns = equation.invars[0].aval.shape
        return round(math.prod(batch) * formula(max(rows, columns), min(rows, columns)))

    return rule


_RULES: dict[str, Callable[[Any], int]] = {  # e: the equation
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
    "integer_pow": _integer_power,
    "sort": _sort,
    "top_k": _top_k,
    "approx_top_k": _first,
    "fft": _fft,
    "reduce": _reduce,
    "triangular_solve": lambda e: array_size(e.invars[1].aval) * e.invars[0].aval.shape[-1],
    "tridiagonal_solve": lambda e: 8 * _outputs(e),
    "cholesky": _matrix(lambda m, n: n**3 / 3),
    "lu": _matrix(lambda m, n: m * n**2 - n**3 / 3),
    "geqrf": _matrix(lambda m, n: 2 * m * n**2 - 2 * n**3 / 3),
    "householder_product": _matrix(lambda m, n: 2 * m * n**2 - 2 * n**3 / 3),
    "qr": _matrix(lambda m, n: 4 * m * n**2 - 4 * n**3 / 3),
    "eigh": _matrix(lambda m, n: 9 * n**3),
    "eig": _matrix(lambda m, n: 25 * n**3),
    "schur": _matrix(lambda m, n: 25 * n**3),
    "hessenberg": _matrix(lambda m, n: 10 * n**3 / 3),
    "tridiagonal": _matrix(lambda m, n: 4 * n**3 / 3),
    "svd": _matrix(lambda m, n: 4 * m**2 * n + 8 * m * n**2 + 9 * n**3),
    **dict.fromkeys(
        ["reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min", "select_and_gather_add"],
        lambda e: _outputs(e) * math.prod(e.params["window_dimensions"]),
    ),
    **dict.fromkeys(
        ["select_and_scatter", "select_and_scatter_add"],
        lambda e: _first(e) * math.prod(e.params["window_dimensions"]),
    ),
    **dict.fromkeys(
        [f"scatter{separator}{kind}" for kind in ("add", "sub", "mul", "min", "max") for separator in "-_"],
        lambda e: array_size(e.invars[2].aval),
    ),
    **dict.fromkeys(
        str.split("random_bits random_split random_fold_in random_seed threefry2x32 rng_bit_generator rng_uniform"),
        _random,
    ),
}


def _convolution_layer(params: Any, kernel: Any, read: Any, written: Any) -> Layer:
    numbers = params["dimension_numbers"]
    (batch, channels, *spatial), (batch_out, channels_out, *spatial_out) = numbers.lhs_spec, numbers.out_spec
    size = [kernel[axis] for axis in numbers.rhs_spec[2:]]
    window = Window(
        params["feature_group_count"],
        *_along_xy(size),
        _along_xy(params["window_strides"])[0],
        _first_shape(params["padding"]),
        _along_xy(params["rhs_dilation"])[0],
    )
    inner = [read[axis] for axis in (batch, *spatial, channels)]
    return Layer.of(inner, [written[axis] for axis in (batch_out, *spatial_out, channels_out)], window)


def _pooling(params: Any) -> Window | None:
    if "window_dimensions" not in params or len(params["window_dimensions"]) < 3:
        return None
    keys = ("window_dimensions", "window_strides", "padding")
    size, strides, padding = (params[key][1:-1] for key in keys)  # without batch and channels
    return Window(1, *_along_xy(size), _along_xy(strides)[0], _first_shape(padding), 1)


def _along_xy(values: Any) -> tuple[Any, Any]:
    """Returns the values along x and along y, of the spatial dimensions."""
    return (values[-1], values[-2] if len(values) > 1 else 1) if len(values) else (1, 1)


def _first_shape(padding: Any) -> Any:
    """Returns the padding before the input along x, from pairs for the spatial dimensions."""
    return padding[-1][0] if len(padding) else 0


@functools.lru_cache(maxsize=512)
def _expanded(primitive: Any) -> core.ClosedJaxpr:
    """Expands a high-level primitive of jax to its jaxpr."""

    def run(*args: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, args)))

    return jax.make_jaxpr(run)(*primitive.in_avals_flat)


def _loop(bodies: Sequence[tuple[Work, int]]) -> Work:
    """Costs a loop: bodies in sequence, each with its number of repetitions."""
    workspace = max((body.step_bytes for body, count in bodies if count), default=0)
    return in_turn([repeated(body, count) for body, count in bodies])._replace(workspace_bytes=workspace)


def _kernel(params: Mapping[str, Any], body: Work) -> Work:
    estimate = params.get("cost_estimate")
    grid = getattr(params.get("grid_mapping"), "grid", ())
    runs = math.prod(size for size in grid if isinstance(size, int))
    return Work(body.flops * runs if estimate is None else int(estimate.flops), body.runtime, 0)


def _integer(value: Any) -> int | None:
    """Returns the value if it is a known integer scalar, else None."""
    if value is None or np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
        return None
    return int(value)


def _step(body: core.Jaxpr, before: Any, after: Any) -> int | None:
    """Finds the change of a carried integer in one iteration: 0 if it is passed on, None if unknown."""
    if after is before:
        return 0
    for equation in body.eqns:
        if after in equation.outvars and equation.primitive.name in ("add", "sub"):
            left, right = equation.invars
            if left is before and isinstance(right, core.Literal):
                step = _integer(right.val)
                return -step if step is not None and equation.primitive.name == "sub" else step
            if right is before and isinstance(left, core.Literal) and equation.primitive.name == "add":
                return _integer(left.val)
    return None


def _count(relation: str, start: int, stop: int, step: int) -> int | None:
    """Counts iterations of `while start <relation> stop: start += step`; None if `start` does not approach `stop`."""
    sign = 1 if relation in ("lt", "le") else -1
    if sign * step <= 0:
        return None
    distance = sign * (stop - start) + (relation in ("le", "ge"))
    return max(0, -(-distance // (sign * step)))
