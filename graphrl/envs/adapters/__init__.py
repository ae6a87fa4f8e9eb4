"""Adapters that convert an environment with one problem instance to gymnax, jumanji, stoa and gymnasium.

The libraries are optional and imported on use. Their environments differ:

| | instance | key of a step | end of an episode | after it |
|---|---|---|---|---|
| gymnax | its `params`, this one by default | an argument | terminated, truncated | resets itself |
| jumanji | fixed | of the state, split | step type LAST, discount 0 or 1 | its wrappers reset |
| stoa | its `env_params`, this one by default | of the state, split | TERMINATED or TRUNCATED | its wrappers reset |
| gymnasium | fixed | of the environment, split | terminated, truncated | the caller resets |

Observations stay named tuples for gymnax and jumanji; jumanji's lack fields that are None. stoa and gymnasium have
spaces of dictionaries, so that named tuples become dictionaries. gymnasium's arrays are NumPy's, and its environment
compiles reset and step; the others are pure. `to_gymnasium_vector` steps many instances in one compiled call. With
`flat=True`, the adapters to gymnax and gymnasium give vectors in place of trees. After `register_in_gymnasium()`,
gymnasium knows the environments by id: `gymnasium.make("graphrl/Ordering-v0", model="model.onnx")`.
"""

from graphrl.envs.adapters.gymnasium import register_in_gymnasium, to_gymnasium, to_gymnasium_vector
from graphrl.envs.adapters.gymnax import from_gymnax, to_gymnax
from graphrl.envs.adapters.jumanji import to_jumanji
from graphrl.envs.adapters.stoa import to_stoa

__all__ = [
    "from_gymnax",
    "register_in_gymnasium",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_gymnax",
    "to_jumanji",
    "to_stoa",
]
